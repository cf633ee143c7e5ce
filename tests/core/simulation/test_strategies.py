"""Other strategies' rules: against closed forms, and against recursions and walks that are written
without a clock."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from laggard.analysis.replay.fitted_durations import fit_recorded_durations
from laggard.analysis.tables.columns import FloatArray
from laggard.core.cost_model.links import NetworkHop
from laggard.core.cost_model.message_handling import DEFAULT_HANDLING
from laggard.core.errors import InputError
from laggard.core.simulation.network import (
    FRAMING_OVERHEAD,
    Bottleneck,
    SimulatedNetwork,
)
from laggard.core.simulation.recorded_durations import RecordedDurations, create_constant_duration
from laggard.core.simulation.strategies.catalog import STRATEGIES, AlternativeStrategy
from laggard.core.simulation.training import (
    SimulationInput,
    TrainingWork,
)
from laggard.workloads.workload import Workload

STEPS = 6
Costs = list[list[float]]
costs = st.integers(2, 5).flatmap(
    lambda world: st.lists(
        st.lists(st.floats(0.1, 10.0), min_size=60, max_size=60), min_size=world, max_size=world
    )
)
"""Seconds of every rank's steps, more than any rule lets it take."""


def in_order(seconds: Sequence[float]) -> RecordedDurations:
    return RecordedDurations(1.0, 0.0, np.array(seconds), 0, np.zeros(0), np.ones(1))


def scene(
    ranks: Sequence[RecordedDurations],
    steps: int = STEPS,
    *,
    message_bytes: float = 0.0,
    rate_mbps: float = float("inf"),
    rtt_ms: float = 0.0,
    share: float = 1e9,
    tiers: Sequence[str] | None = None,
    shared: tuple[Bottleneck, ...] = (),
) -> SimulationInput:
    """A training of so many steps of the whole, a sample of each rank in each; processors are so
    fast that messages cost them nothing."""
    world = len(ranks)
    hosts = tuple(f"h{rank}" for rank in range(world))
    names = (*hosts, "server")
    hops = {
        (src, dst): NetworkHop((src, dst), rate_mbps, rtt_ms)
        for src in names
        for dst in names
        if src != dst
    }
    return SimulationInput(
        work=TrainingWork(tuple(ranks), np.ones(1), float(steps * world), float("inf")),
        hosts=hosts,
        tiers=tuple(tiers or ["edge"] * world),
        shares_of_core=(share,) * world,
        server="server",
        server_share=share,
        network=SimulatedNetwork(hops, shared),
        message_bytes=message_bytes,
    )


def seconds_of(name: str, scene: SimulationInput, **parameters: int | str) -> float:
    return AlternativeStrategy(name, parameters).simulate(scene).makespan_s


def of(costs: Costs) -> SimulationInput:
    return scene([in_order(each) for each in costs])


# --- what is repeated


def walked(task: RecordedDurations, start_s: float, seconds: float) -> float:
    """The same, as the integral of a speed over pieces of time."""
    left, now = seconds, start_s
    ends = [edge for edge in task.edges_s.tolist() if edge > start_s]
    for end in [*ends, float("inf")]:
        factor = float(task.factors[int((task.edges_s <= now).sum())])
        if (end - now) / factor >= left:
            return now + left * factor
        left -= (end - now) / factor
        now = end
    raise AssertionError


slow_times = st.tuples(
    st.lists(st.floats(0.0, 50.0), max_size=6, unique=True),
    st.lists(st.floats(0.3, 5.0), min_size=7, max_size=7),
).map(
    lambda drawn: RecordedDurations(
        1.0, 0.0, np.ones(1), 0, np.array(sorted(drawn[0])), np.array(drawn[1][: len(drawn[0]) + 1])
    )
)


@given(slow_times, st.floats(0.0, 60.0), st.floats(0.0, 30.0), st.floats(0.0, 30.0))
def test_slow_times_stretch_what_falls_into_them(
    task: RecordedDurations, start_s: float, one: float, other: float
) -> None:
    assert task.compute_end_s(start_s, one) == pytest.approx(walked(task, start_s, one))
    assert task.compute_end_s(task.compute_end_s(start_s, one), other) == pytest.approx(
        task.compute_end_s(start_s, one + other), abs=1e-6
    )


@settings(deadline=None)
@given(st.lists(st.floats(0.5, 2.0), min_size=4, max_size=40), st.floats(0.0, 3.0))
def test_what_is_done_at_the_same_times_takes_what_it_took(
    ratio: list[float], gap_s: float
) -> None:
    """Steps of a second's usual work with gaps between them: whatever is slowness of the time, or
    jitter, together it is what was seen."""
    ends = np.cumsum(np.array(ratio) + gap_s) - gap_s
    starts = ends - np.array(ratio)
    task = fit_recorded_durations(
        1.0, 0.0, starts, ends, np.array(ratio), np.zeros(len(ratio), dtype=np.bool_)
    )
    for count, (start_s, end_s) in enumerate(zip(starts, ends, strict=True)):
        assert task.compute_finish_s(float(start_s), count) == pytest.approx(float(end_s), rel=1e-6)


def test_a_slow_while_belongs_to_the_time_and_a_single_slow_step_to_itself() -> None:
    ratio = np.ones(40)
    ratio[10:20], ratio[30] = 3.0, 5.0
    ends = np.cumsum(ratio)
    task = fit_recorded_durations(1.0, 0.0, ends - ratio, ends, ratio, np.zeros(40, dtype=np.bool_))
    assert task.compute_end_s(0.0, 8.0) == pytest.approx(8.0)
    assert task.compute_end_s(15.0, 2.0) == pytest.approx(21.0)
    assert task.compute_end_s(45.0, 2.0) == pytest.approx(47.0)
    assert [task.seconds(count) for count in (15, 30, 70)] == pytest.approx([1.0, 5.0, 5.0])


# --- in lockstep


@given(costs)
def test_all_reduce_waits_for_the_slowest_in_every_step(costs: Costs) -> None:
    slowest = np.array(costs)[:, :STEPS].max(axis=0)
    assert seconds_of("allreduce", of(costs)) == pytest.approx(slowest.sum())
    assert seconds_of("parameter_server", of(costs)) == pytest.approx(slowest.sum())


@given(costs, st.integers(1, 8))
def test_local_sgd_waits_for_the_slowest_sum(costs: Costs, every: int) -> None:
    taken = np.array(costs)[:, :STEPS]
    blocks = [taken[:, begin : begin + every].sum(axis=1).max() for begin in range(0, STEPS, every)]
    assert seconds_of("local_sgd", of(costs), steps=every) == pytest.approx(sum(blocks))
    assert seconds_of("diloco", of(costs), steps=every) == pytest.approx(sum(blocks))


@given(costs, st.integers(1, 3), st.integers(1, 3))
def test_hierarchical_waits_within_tiers_and_then_across(
    costs: Costs, tier_steps: int, times: int
) -> None:
    wan_steps, tiers = tier_steps * times, ["a" if rank % 2 else "b" for rank in range(len(costs))]
    taken, total = np.array(costs)[:, :STEPS], 0.0
    for begin in range(0, STEPS, wan_steps):
        of_tiers = []
        for tier in set(tiers):
            rows = taken[[each == tier for each in tiers], begin : begin + wan_steps]
            parts = range(0, rows.shape[1], tier_steps)
            of_tiers.append(sum(rows[:, at : at + tier_steps].sum(axis=1).max() for at in parts))
        total += max(of_tiers)
    ranks = [in_order(each) for each in costs]
    played = seconds_of(
        "hierarchical", scene(ranks, tiers=tiers), tier_steps=tier_steps, wan_steps=wan_steps
    )
    assert played == pytest.approx(total)


def test_a_ring_over_equal_links_takes_what_the_textbook_says() -> None:
    ranks = [create_constant_duration(0.0)] * 4
    made = scene(ranks, steps=1, message_bytes=10e6 / FRAMING_OVERHEAD, rate_mbps=100.0)
    assert seconds_of("allreduce", made) == pytest.approx(2 * 3 / 4 * 0.8)
    halved = (Bottleneck("half of it", frozenset({("h3", "h2"), ("h1", "h0")}), 50.0),)
    narrow = scene(
        ranks, steps=1, message_bytes=10e6 / FRAMING_OVERHEAD, rate_mbps=100.0, shared=halved
    )
    # Two of the ring's ways share 50 Mbit/s.
    assert seconds_of("allreduce", narrow) == pytest.approx(4 * 2 * 3 / 4 * 0.8, rel=0.2)


# --- with a server


def test_without_waiting_everybody_counts_at_a_pace_of_its_own() -> None:
    """Rates add up: 1 + 1/2 + 1/4 a second, so that 42 are there after 24 s."""
    made = scene(
        [
            create_constant_duration(1.0),
            create_constant_duration(2.0),
            create_constant_duration(4.0),
        ],
        steps=14,
    )
    for name in ("asynchronous", "ad_psgd", "overlap_local_sgd"):
        assert seconds_of(name, made) == pytest.approx(24.0)


@given(costs, st.integers(0, 4))
def test_bounded_staleness_is_a_recursion_over_steps(costs: Costs, bound: int) -> None:
    world, most = len(costs), 60
    end = np.zeros((world, most))
    for step in range(most):
        for rank in range(world):
            begun = end[rank, step - 1] if step else 0.0
            behind = step - 1 - bound
            end[rank, step] = (
                max(begun, end[:, behind].max() if behind >= 0 else 0.0) + costs[rank][step]
            )
    counts = [
        max(end[rank, step], end[:, step - bound].max() if step >= bound else 0.0)
        for rank in range(world)
        for step in range(most)
    ]
    expected = sorted(counts)[STEPS * world - 1]
    assert seconds_of("bounded_staleness", of(costs), staleness=bound) == pytest.approx(expected)


@given(costs, st.integers(0, 4))
def test_with_backups_a_step_takes_the_first_that_come(costs: Costs, backups: int) -> None:
    """Each is worked out from the one before: who still computes for an old step joins the one that
    is under way then."""
    world = len(costs)
    needed = max(world - backups, 1)
    taken = [0] * world
    pending: list[tuple[float, int, int]] = []
    now, step, learnt = 0.0, 0, 0
    begin = list(range(world))
    while learnt < STEPS * world:
        pending += [(now + costs[rank][taken[rank]], rank, step) for rank in begin]
        for rank in begin:
            taken[rank] += 1
        begin, come = [], 0
        arrived: list[int] = []
        while come < needed:
            pending.sort()
            now, rank, of_step = pending.pop(0)
            if of_step == step:
                come += 1
                arrived.append(rank)
            else:
                pending.append((now + costs[rank][taken[rank]], rank, step))
                taken[rank] += 1
        learnt, step, begin = learnt + come, step + 1, arrived
    assert seconds_of("backup_workers", of(costs), backups=backups) == pytest.approx(now)


def test_with_equal_steps_the_slowest_are_left_out() -> None:
    """The order statistic: of 1, 2, 3 and 9 s the third, for three gradients a step."""
    made = scene([create_constant_duration(each) for each in (1.0, 2.0, 3.0, 9.0)], steps=3)
    assert seconds_of("backup_workers", made, backups=1) == pytest.approx(4 * 3.0)


def test_a_servers_messages_take_their_ways_and_its_time() -> None:
    """One worker: sealed, sent, opened; the answer the same way back. 1 MB at 8 Mbit/s, 10 ms away;
    a tenth of a core each."""
    made = scene(
        [create_constant_duration(1.0)],
        steps=2,
        message_bytes=1e6,
        rate_mbps=8.0 * FRAMING_OVERHEAD,
        rtt_ms=20.0,
        share=0.1,
    )
    way_s = 1.0 + 0.01 + 2 * DEFAULT_HANDLING.packing_s_per_mb / 0.1
    assert seconds_of("parameter_server", made) == pytest.approx(
        2.0 + 3 * way_s + DEFAULT_HANDLING.applying_s_per_mb / 0.1
    )


def test_a_worker_beside_the_server_has_half_of_the_processor_meanwhile() -> None:
    """Of two workers of one second's work the other's gradient comes first: while it is opened (0.9
    s), applied (0.4 s) and answered (0.9 s), the first has half."""
    made = scene(
        [create_constant_duration(10.0), create_constant_duration(1.0)],
        steps=1,
        message_bytes=1e6,
        share=1e-3,
    )
    beside = dataclasses.replace(made, server="h0")
    # In 1.0 + 0.9 s, sealing included, the second is there. Opening takes it 1.8 s then, and the
    # first a half of that.
    assert seconds_of("asynchronous", made) == pytest.approx(
        1.0 + 0.9 + 0.9 + 0.4 + 0.9 + 0.9 + 1.0 + 0.9 + 0.9
    )
    assert seconds_of("asynchronous", beside) == pytest.approx(
        1.0 + 0.9 + 1.8 + 0.8 + 1.8 + 0.9 + 1.0 + 0.9 + 1.8
    )


def test_pushes_through_one_uplink_of_the_server_share_it() -> None:
    into = Bottleneck(
        "down", frozenset((f"h{rank}", "server") for rank in range(4)), 8.0 * FRAMING_OVERHEAD
    )
    made = scene(
        [create_constant_duration(1.0)] * 4,
        steps=1,
        message_bytes=1e6,
        rate_mbps=80.0,
        shared=(into,),
    )
    assert seconds_of("parameter_server", made) == pytest.approx(1.0 + 4.0)


# --- among peers


@given(costs)
def test_gossip_waits_for_the_neighbours_to_have_begun(costs: Costs) -> None:
    world, most = len(costs), 60
    begin = np.zeros((world, most + 1))
    for step in range(most):
        for rank in range(world):
            beside = [(rank - 1) % world, (rank + 1) % world]
            own = begin[rank, step] + costs[rank][step]
            begin[rank, step + 1] = max(own, *(begin[each, step] for each in beside))
    expected = sorted(begin[:, 1:].ravel())[STEPS * world - 1]
    assert seconds_of("gossip", of(costs)) == pytest.approx(expected)
    assert seconds_of("hop", of(costs), staleness=0, skip=0) == pytest.approx(expected)


@given(costs, st.integers(0, 6))
def test_hop_lets_neighbours_be_so_many_steps_behind(costs: Costs, staleness: int) -> None:
    world, most = len(costs), 60
    begin = np.zeros((world, most + 1))
    for step in range(most):
        for rank in range(world):
            least = [
                begin[(rank + side) % world, step - staleness]
                for side in (-1, 1)
                if step >= staleness
            ]
            begin[rank, step + 1] = max(begin[rank, step] + costs[rank][step], *least, 0.0)
    expected = sorted(begin[:, 1:].ravel())[STEPS * world - 1]
    told = seconds_of("hop", of(costs), staleness=staleness, skip=0, max_iteration_gap=1000)
    assert told == pytest.approx(expected)


def test_who_may_leave_steps_out_holds_up_less() -> None:
    """One of four takes eight times as long: its neighbours go on at its pace, or with four of five
    steps left out at five times that."""
    slow = scene([create_constant_duration(8.0), *[create_constant_duration(1.0)] * 3], steps=60)
    assert seconds_of("hop", slow, skip=0) == pytest.approx(8.0 * 60, rel=0.1)
    assert seconds_of("hop", slow, skip=4) < 0.5 * seconds_of("hop", slow, skip=0)


@given(costs)
def test_a_group_of_all_is_an_all_reduce(costs: Costs) -> None:
    slowest = np.array(costs)[:, :STEPS].max(axis=0)
    assert seconds_of("partial_reduce", of(costs), group=len(costs)) == pytest.approx(slowest.sum())


@given(costs, st.integers(2, 4))
def test_groups_are_the_first_in_line(costs: Costs, size: int) -> None:
    world, size = len(costs), min(size, len(costs))
    coming = [(costs[rank][0], rank) for rank in range(world)]
    taken, learnt, line = [1] * world, 0, []
    ends: list[float] = []
    while learnt < STEPS * world:
        now, rank = min(coming)
        coming.remove((now, rank))
        # Of ranks that come at once, any may be the first.
        assume(all(abs(other - now) > 1e-9 for other, _ in coming))
        line.append(rank)
        if len(line) == size:
            coming += [(now + costs[each][taken[each]], each) for each in line]
            for each in line:
                taken[each] += 1
            learnt, line = learnt + size, []
            ends.append(now)
    assert all(one <= other for one, other in pairwise(ends))
    assert seconds_of("partial_reduce", of(costs), group=size) == pytest.approx(ends[-1])


# --- what can be asked for


@pytest.mark.parametrize("name", STRATEGIES)
def test_parameters_that_are_not_given_are_those_of_workload_yaml(name: str) -> None:
    described = {
        "model": "mlp",
        "dataset": "digits",
        "batch_size": 8,
        "strategy": name,
        "stop": {"steps": 1},
    }
    strategy = Workload.model_validate(
        {**described, "placement": {"workers": ["*"]}}
    ).strategy.model_dump()
    for key, value in AlternativeStrategy(name).settings.items():
        assert strategy[key] == value


@pytest.mark.parametrize(
    ("name", "parameters", "said"),
    [
        ("telepathy", {}, "no strategy that can be simulated"),
        ("local_sgd", {"staleness": 2}, "does not depend on a parameter"),
        ("local_sgd", {"steps": 0}, "integer of at least 1"),
        ("local_sgd", {"steps": True}, "must be an integer"),
        ("gossip", {"graph": "star"}, "must be ring or complete"),
        ("partial_reduce", {"group": 1}, "integer of at least 2"),
    ],
)
def test_what_is_no_strategy_is_refused(
    name: str, parameters: dict[str, int | str], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        AlternativeStrategy(name, parameters)


def test_steps_are_as_many_as_the_samples_make() -> None:
    shares: FloatArray = np.array([10.0, 4.0])
    work = TrainingWork((create_constant_duration(1.0),) * 2, shares, 20.0 + 8.0 + 20.0, 0.0)
    assert work.steps == 3
