"""What `adaptive` makes of measurements, and real trainings with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.workloads.adaptive.choice import Rules, choose, price, steps_needed, worth_trying
from laggard.workloads.adaptive.measured import FLAT, KEPT, KINDS, TIER, WIDE, WORK, Diary, costs_of, crossings
from laggard.workloads.adaptive.scheme import EVERY_STEP, Costs, Scheme, schemes
from laggard.workloads.spool import read_lines
from laggard.workloads.strategies.adaptive import EXCHANGE_GROUP, FIRST_STEPS

if TYPE_CHECKING:
    from tests.workloads.conftest import Train

RULES = Rules("makespan", drift=0.01, longest=32)
TIERS = ("cloud", "cloud", "fog", "edge", "edge", "edge")
seconds = st.floats(1e-3, 100.0)
costs_known = st.builds(lambda work, flat: Costs({1: work}, flat), seconds, seconds) | st.builds(
    lambda work, flat, tier, far: Costs({1: work}, flat, tier, tier + far, 1e6, 4e5), seconds, seconds, seconds, seconds
)


def test_fast_links_are_left_to_the_all_reduce() -> None:
    choice = choose(Costs(work_s={1: 1.0}, flat_s=0.01), RULES, EVERY_STEP)
    assert (choice.scheme, choice.gain) == (EVERY_STEP, 1.0)


@pytest.mark.parametrize("ratio", [0.5, 2.0, 10.0, 40.0])
def test_the_period_is_that_of_the_closed_form(ratio: float) -> None:
    """(c + x / H) (1 + k (H - 1)) is least at H = sqrt(x (1 - k) / (c k)); the power of two that is chosen is next to it."""
    scheme = choose(Costs(work_s={1: 1.0}, flat_s=ratio), Rules("makespan", 0.01, 10**6), EVERY_STEP).scheme
    least = min(32.0, np.sqrt(ratio * 0.99 / 0.01))
    assert least / 2 <= scheme.period <= least * 2


def test_tiers_far_apart_are_averaged_by_way_of_their_first_ranks() -> None:
    costs = Costs(work_s={1: 1.0}, flat_s=20.0, tier_s=0.01, wide_s=8.0)
    choice = choose(costs, RULES, EVERY_STEP)
    assert choice.scheme.name == "hierarchical"
    assert choice.gain > 5
    assert "by way of the tiers' first ranks" in choice.reason


@given(costs_known, st.sampled_from([EVERY_STEP, Scheme("local_sgd", 8), Scheme("hierarchical", 4)]))
def test_nothing_changes_for_less_than_a_tenth(costs: Costs, current: Scheme) -> None:
    choice = choose(costs, RULES, current)
    known = schemes(costs, RULES.longest)
    cheapest = min(price(scheme, costs, RULES) for scheme in known)
    if choice.scheme == current:
        assert price(current, costs, RULES) <= 1.1 * cheapest
    else:
        assert price(choice.scheme, costs, RULES) == cheapest
        assert current not in known or choice.gain > 1.1


def test_averages_by_tiers_are_tried_where_averages_matter_and_time_allows() -> None:
    far, near = Costs(work_s={1: 1.0}, flat_s=9.0), Costs(work_s={1: 1.0}, flat_s=0.05)
    assert not worth_trying(far, Scheme("local_sgd", 32), budget_s=26.0)
    assert worth_trying(far, Scheme("local_sgd", 32), budget_s=27.0)
    assert not worth_trying(near, EVERY_STEP, budget_s=1e9)


def test_ranks_that_are_slow_by_turns_are_waited_for_less_where_meetings_are_rare() -> None:
    """Each of four is four times as slow in every fourth step: over four steps all are alike."""
    turns = [[4.0 if (step + rank) % 4 == 0 else 1.0 for step in range(32)] for rank in range(4)]
    costs = costs_of(tables(work=turns, flat=[[0.0]] * 4), ("edge",) * 4, 1000)
    assert costs.work(1) == 4.0
    assert costs.work(2) == 2.5
    assert costs.work(4) == costs.work(8) == 1.75
    choice = choose(costs, RULES, EVERY_STEP)
    assert choice.scheme == Scheme("local_sgd", 4)
    assert "over 32 steps the slowest rank takes 0.44 times" in choice.reason


def test_work_with_other_shares_is_forgotten() -> None:
    diary = Diary()
    for seconds_of, size in ((1.0, 100), (1.1, 110), (5.0, 20), (5.1, 21)):
        diary.work(seconds_of, size)
    assert diary.table()[WORK][-3:].tolist()[1:] == [5.0, 5.1]
    assert np.isnan(diary.table()[WORK][:-2]).all()


def test_dear_bytes_make_averages_rarer() -> None:
    costs = Costs(work_s={1: 1.0}, flat_s=0.02, flat_bytes=1e7)
    cheap, dear = (
        Rules("cost", drift=0.01, longest=32, rent_per_s=1e-4, price_per_byte=each) for each in (1e-15, 1e-9)
    )
    assert choose(costs, cheap, EVERY_STEP).scheme == EVERY_STEP
    assert choose(costs, dear, EVERY_STEP).scheme.period >= 16
    assert steps_needed(EVERY_STEP, 0.5) == 1


def tables(**kinds: list[list[float]]) -> np.ndarray:
    """Shape [ranks, KINDS, KEPT] from the entries of each rank, by kind."""
    numbers = {"work": WORK, "flat": FLAT, "tier": TIER, "wide": WIDE}
    ranks = len(next(iter(kinds.values())))
    diaries = [Diary() for _ in range(ranks)]
    for name, entries in kinds.items():
        for diary, own in zip(diaries, entries, strict=True):
            for each in own:
                diary.note(numbers[name], each)
    return np.stack([diary.table() for diary in diaries])


def test_waiting_for_a_slow_rank_is_not_taken_for_a_slow_link() -> None:
    """Transfers of 0.5 s; the last rank is slow, and everybody waits for it, but it for nobody."""
    told = tables(work=[[1.0] * 9, [1.0] * 9, [3.0] * 9], flat=[[2.5] * 9, [2.5] * 9, [0.5] * 9])
    assert told.shape == (3, KINDS, KEPT)
    costs = costs_of(told, ("edge",) * 3, 1000)
    assert (costs.work_s, costs.flat_s, costs.tier_s, costs.wide_s) == (
        {1: 3.0, 2: 3.0, 4: 3.0, 8: 3.0},
        0.5,
        None,
        None,
    )


def test_the_slowest_tier_counts_and_single_ranks_do_not() -> None:
    told = tables(
        work=[[1.0]] * 6,
        flat=[[4.0]] * 6,
        tier=[[0.1], [0.3], [], [0.9], [0.7], [0.8]],
        wide=[[2.0], [2.5], [2.2], [3.0], [2.1], [2.4]],
    )
    costs = costs_of(told, TIERS, 6_000)
    assert (costs.tier_s, costs.wide_s) == (0.7, 2.0)
    assert costs.flat_bytes == 3 * 2 * 5 / 6 * 6_000
    assert costs.wide_bytes == 3 * 2 * 2 / 3 * 6_000


def test_a_ring_crosses_tiers_as_often_as_its_order_makes_it() -> None:
    assert crossings(TIERS) == 3
    assert crossings(("a", "b", "a", "b")) == 4
    assert crossings(("a",)) == crossings(("a", "a")) == 0


DIGITS = {"model": "mlp", "dataset": "digits", "batch_size": 96, "optimizer": {"lr": 0.05}, "stop": {"steps": 300}}


def accuracy(evaluations: list[dict[str, object]]) -> float:
    assert len(evaluations) >= 7
    return float(np.median([float(str(line["accuracy"])) for line in evaluations[-7:]]))


def test_digits_are_learnt_as_well_as_with_all_reduce(train: Train) -> None:
    """Over loopback, where what an average costs beside a step of a millisecond is a matter of chance: whatever it does, it learns."""
    adaptive, ddp = (train({**DIGITS, "strategy": name}, 3) for name in ("adaptive", "allreduce"))
    assert adaptive.done()["steps"] == 300
    assert accuracy(read_lines(adaptive.spool.evaluations)) >= accuracy(read_lines(ddp.spool.evaluations)) - 0.01


def test_all_ranks_follow_the_same_scheme(train: Train) -> None:
    """Each decides by itself; if two decided differently, they would not meet."""
    workload = {**DIGITS, "evaluate_every": 96, "strategy": {"name": "adaptive", "every": 5}, "stop": {"steps": 60}}
    training = train(workload, 4, tiers=("cloud", "cloud", "edge", "edge"))
    assert training.done()["steps"] == 60
    spans = training.table("spans")
    comm = spans[spans.phase == "comm"]
    steps = [set(of_rank.step) for _, of_rank in comm.groupby("rank")]
    assert steps == [steps[0]] * 4
    exchanged = comm[comm.group == EXCHANGE_GROUP].groupby("step").size()
    assert exchanged.index[0] == FIRST_STEPS - 1
    assert (exchanged == 4).all()
