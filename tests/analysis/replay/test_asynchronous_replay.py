"""Ranks of their own pace, replayed: by the strategies' own rules, against a simulator that walks
through them one moment at a time."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.analysis.replay.asynchronous.async_replay import AsyncReplay
from laggard.analysis.replay.asynchronous.step_dependencies import build_step_graph
from laggard.analysis.tables.columns import FloatArray
from laggard.analysis.tables.timelines.rank_timeline import RankTimeline
from laggard.core.errors import RunFolderError
from laggard.core.rules.wait_rule import WaitRule, get_wait_rule
from laggard.core.simulation.group_steps import GroupSteps
from laggard.core.simulation.step_graph import (
    NO_DEPENDENCIES,
    StepDependencies,
    StepDependency,
    StepDurations,
    sort_events,
)
from tests.analysis.asynchronous_runs import Seconds, pace, simulated, strategy


def race_of(rule: WaitRule | None, before: Seconds, after: Seconds) -> AsyncReplay:
    rank_timelines = tuple(simulated(rule, before, after))
    return AsyncReplay(
        rank_timelines,
        build_step_graph(rank_timelines, rule),
        min(float(p.end_s[-1]) for p in rank_timelines),
    )


RULES = st.sampled_from(
    [
        strategy("bounded_staleness", staleness=0),
        strategy("bounded_staleness", staleness=3),
        strategy("gossip", graph="ring"),
        strategy("gossip", graph="complete"),
        strategy("hop", graph="ring", staleness=2, backups=0),
        strategy("asynchronous"),
    ]
)


@st.composite
def trainings(
    draw: st.DrawFn,
) -> tuple[WaitRule | None, list[FloatArray], list[FloatArray], list[FloatArray]]:
    """A rule, seconds before and behind the wait, and other seconds before it."""
    world, count = draw(st.integers(2, 6)), draw(st.integers(1, 25))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    speed = rng.uniform(0.5, 4.0, world)
    drawn = [[speed[r] * rng.uniform(0.5, 1.5, count) for r in range(world)] for _ in range(2)]
    after = [rng.uniform(0.01, 0.2, count) for _ in range(world)]
    return get_wait_rule(draw(RULES), world), drawn[0], after, drawn[1]


@given(trainings())
@settings(max_examples=150, deadline=None)
def test_a_replay_of_what_was_seen_is_what_was_seen(
    training: tuple[WaitRule | None, list[FloatArray], list[FloatArray], list[FloatArray]],
) -> None:
    rule, before, after, _ = training
    race = race_of(rule, before, after)
    for pace_, end in zip(race.rank_timelines, race.steps.end_times(race.observed()), strict=True):
        assert end[0] == pytest.approx(pace_.end_s, abs=1e-9)
    assert race.compute_makespans(race.observed()) == pytest.approx([race.end_s], rel=1e-9)


@given(trainings())
@settings(max_examples=150, deadline=None)
def test_with_other_durations_it_is_what_the_strategy_would_have_done(
    training: tuple[WaitRule | None, list[FloatArray], list[FloatArray], list[FloatArray]],
) -> None:
    rule, before, after, others = training
    race = race_of(rule, before, after)
    expected = simulated(rule, others, after)
    replayed = race.steps.end_times(
        StepDurations(tuple(each[None] for each in others), tuple(each[None] for each in after))
    )
    for pace_, end in zip(expected, replayed, strict=True):
        assert end[0] == pytest.approx(pace_.end_s, abs=1e-9)


def test_who_need_not_wait_for_all_waits_for_the_others_of_them() -> None:
    """Three neighbours of rank 0 in a complete graph, the slowest of which it does not wait for."""
    rule = get_wait_rule(strategy("hop", graph="complete", staleness=0, backups=1), 4)
    assert rule is not None
    before = [np.full(10, seconds) for seconds in (1.0, 2.0, 3.0, 9.0)]
    after = [np.full(10, 0.5)] * 4
    race = race_of(rule, before, after)
    # Rank 0 begins a step no sooner than the second of its neighbours has ended the one before;
    # rank 3 holds nobody up.
    assert race.rank_timelines[0].end_s[-1] < 10 * 4.0
    assert race.steps.end_times(race.observed())[0][0] == pytest.approx(
        race.rank_timelines[0].end_s
    )


@pytest.mark.parametrize(
    "name", ["asynchronous", "ad_psgd", "adaptive", "overlap_local_sgd", "partial_reduce"]
)
def test_who_waits_for_nobody_in_particular_has_no_rule(name: str) -> None:
    assert get_wait_rule(strategy(name), 4) is None


@pytest.mark.parametrize("name", ["bounded_staleness", "gossip", "hop"])
def test_a_record_that_does_not_say_the_parameters_gives_no_rule(name: str) -> None:
    assert get_wait_rule(strategy(name), 4) is None


def test_the_training_ends_when_as_much_is_learnt() -> None:
    """Ranks that never wait, with steps of 1, 2 and 4 s: 28 steps in 16 s; were the third as quick
    as the first, 28 / (1 + 1/2 + 1) s."""
    before = [np.full(16, 1.0), np.full(8, 2.0), np.full(4, 4.0)]
    none = [np.zeros(16), np.zeros(8), np.zeros(4)]
    rank_timelines = tuple(free(each) for each in before)
    race = AsyncReplay(rank_timelines, build_step_graph(rank_timelines, None), 16.0)
    assert race.goal_samples == 28 * 8
    quick = StepDurations(
        (before[0][None], before[1][None], np.full((1, 4), 1.0)), tuple(each[None] for each in none)
    )
    assert race.compute_makespans(quick) == pytest.approx([28 / 2.5])


def free(before: FloatArray) -> RankTimeline:
    end = np.cumsum(before)
    return pace(end, end, end, before, np.zeros(len(before)), np.full(len(before), -1))


@given(st.integers(2, 5), st.integers(1, 20), st.integers(0, 2**32 - 1))
@settings(max_examples=50, deadline=None)
def test_a_group_of_all_is_a_barrier(world: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    before, after = rng.uniform(0.1, 3.0, (world, count)), rng.uniform(0.0, 0.5, (world, count))
    clock = np.zeros(world)
    expected = []
    for step in range(count):
        clock = (clock + before[:, step]).max() + after[:, step]
        expected.append(clock)
    steps = GroupSteps((0.0,) * world, size=world)
    end_times = steps.end_times(
        StepDurations(tuple(b[None] for b in before), tuple(a[None] for a in after))
    )
    assert np.stack([each[0] for each in end_times]) == pytest.approx(np.stack(expected, axis=1))


def test_whoever_is_ready_goes_on_with_whoever_is_ready_next() -> None:
    """Pairs of four ranks that take 1, 1, 5 and 5 s: the quick ones meet each other, and nobody
    waits for a slow one."""
    before = [np.full(10, 1.0), np.full(10, 1.0), np.full(2, 5.0), np.full(2, 5.0)]
    none = [np.zeros((1, len(each))) for each in before]
    steps = GroupSteps((0.0,) * 4, size=2)
    end_times = steps.end_times(StepDurations(tuple(each[None] for each in before), tuple(none)))
    assert end_times[0][0] == pytest.approx(np.arange(1.0, 11.0))
    assert end_times[3][0] == pytest.approx([5.0, 10.0])


def test_who_waited_goes_on_when_it_has_heard() -> None:
    """Of each pair the one that comes first hears of the other 0.1 s late."""
    before = [np.full(3, 1.0), np.full(3, 2.0)]
    steps = GroupSteps((0.0,) * 2, size=2, lag_s=0.1)
    end_times = steps.end_times(
        StepDurations(tuple(each[None] for each in before), (np.zeros((1, 3)), np.zeros((1, 3))))
    )
    assert end_times[1][0] == pytest.approx([2.0, 4.0, 6.0])
    assert end_times[0][0] == pytest.approx([2.1, 4.1, 6.1])


def test_word_that_came_in_the_same_moment_is_there() -> None:
    """Clocks are in nanoseconds: what somebody waited for may seem to have come one later."""
    slow, quick = free(np.full(5, 2.0)), free(np.full(5, 1.0))
    late = np.array([2.0, 4.0, 6.0, 8.0, 10.0])
    waiting = dataclasses.replace(
        quick,
        start_s=late - 2.0,
        ready_s=late - 1.0,
        resume_s=late - 1e-10,
        end_s=late - 1e-10,
        awaited=np.zeros(5, dtype=np.int64),
    )
    rank_timelines = (slow, waiting)
    race = AsyncReplay(rank_timelines, build_step_graph(rank_timelines, None), 10.0)
    assert race.steps.end_times(race.observed())[1][0] == pytest.approx(late)


def test_steps_that_need_each_other_are_refused() -> None:
    circle = (
        (
            StepDependencies((StepDependency(1, 0, False, 0.0),)),
            StepDependencies((StepDependency(1, 1, True, 0.0),)),
        ),
        (NO_DEPENDENCIES, StepDependencies((StepDependency(0, 1, True, 0.0),))),
    )
    with pytest.raises(RunFolderError, match="wait for each other"):
        sort_events(circle)
