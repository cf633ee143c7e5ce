"""Tasks of a step and their schedule: against closed forms, and against all orders."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.core.cost_model.links import NetworkHop
from laggard.core.errors import InputError
from laggard.core.simulation.network import FRAMING_OVERHEAD
from laggard.core.simulation.task_graph import ResourceTask, compute_upward_ranks, schedule_tasks
from laggard.workloads.planning.evaluate_plan import compute_step_s, evaluate_plan
from laggard.workloads.planning.placement_choices import list_placements, place_on
from laggard.workloads.planning.placements import (
    BlockPlacement,
    ModelPlan,
    ReplicaAverage,
    divide_samples,
)
from laggard.workloads.planning.plan_memory import compute_memory, fits_memory, require_memory
from laggard.workloads.planning.planning_problem import (
    AffineSeconds,
    BlockEdge,
    ModelBlock,
    PlanDevice,
    PlanningProblem,
)
from laggard.workloads.planning.step_tasks import build_step_tasks, list_flows
from tests.workloads.planning.generated_problems import (
    find_shortest_s,
    generate_problem,
    list_few_placements,
)

SAMPLE_S, MBPS = 0.01, 80.0


def build_chain(
    blocks: int = 3, devices: int = 2, batch: int = 8, sample_bytes: float = 1e4, rtt_ms: float = 0
) -> PlanningProblem:
    """Equal blocks on equal devices, between which messages take known times."""
    times = (AffineSeconds(0.0, SAMPLE_S),) * blocks
    return PlanningProblem(
        tuple(
            ModelBlock(f"{number}", 1e6, saved_bytes=100.0, update_s=4e-4)
            for number in range(blocks)
        ),
        tuple(BlockEdge(each, each + 1, sample_bytes) for each in range(blocks - 1)),
        tuple(PlanDevice(f"d{number}", times, times) for number in range(devices)),
        {
            (src, dst): NetworkHop((f"{src}", f"{dst}"), MBPS, rtt_ms)
            for src in range(devices)
            for dst in range(devices)
            if src != dst
        },
        batch,
    )


def message_s(size_bytes: float) -> float:
    return size_bytes * FRAMING_OVERHEAD * 8e-6 / MBPS


def test_one_device_takes_the_sum_of_its_passes() -> None:
    problem = build_chain()
    plan = ModelPlan((place_on(problem, 1),) * 3)
    updates_s = 3 * problem.update_s(1, 0)
    assert compute_step_s(problem, plan) == pytest.approx(6 * 8 * SAMPLE_S + updates_s)


@pytest.mark.parametrize("micro_batches", [1, 2, 4, 8])
def test_a_pipeline_of_two_stages_has_the_bubble_of_its_stages(micro_batches: int) -> None:
    problem = build_chain(blocks=2, sample_bytes=0.0)
    plan = ModelPlan((place_on(problem, 0), place_on(problem, 1)), micro_batches)
    pass_s = 8 / micro_batches * SAMPLE_S
    # (m + 1) forward and backward passes, of which the last update follows.
    expected = 2 * (micro_batches + 1) * pass_s + problem.update_s(0, 0)
    assert compute_step_s(problem, plan) == pytest.approx(expected)


def test_a_message_between_stages_takes_the_link_and_the_delay() -> None:
    problem = build_chain(blocks=2, rtt_ms=20.0)
    plan = ModelPlan((place_on(problem, 0), place_on(problem, 1)))
    expected = 4 * 8 * SAMPLE_S + 2 * (message_s(8e4) + 0.01) + problem.update_s(0, 0)
    assert compute_step_s(problem, plan) == pytest.approx(expected)


def test_replicas_divide_the_samples_and_average() -> None:
    problem = build_chain(blocks=1)
    for average, server, exchange_s in (
        (ReplicaAverage.ALL_REDUCE, None, 2 * message_s(5e5)),
        (ReplicaAverage.SERVER, 0, 2 * message_s(1e6)),
    ):
        plan = ModelPlan((BlockPlacement((4, 4), average, server),))
        expected = 2 * 4 * SAMPLE_S + exchange_s + problem.update_s(0, 0)
        assert compute_step_s(problem, plan) == pytest.approx(expected), average


def test_the_average_of_a_late_block_passes_beside_the_passes_of_earlier_ones() -> None:
    problem = build_chain(blocks=2, sample_bytes=0.0)
    plan = ModelPlan((BlockPlacement((4, 4), ReplicaAverage.ALL_REDUCE),) * 2)
    passes_s, reduce_s = 4 * SAMPLE_S, 2 * message_s(5e5)
    updates_s = problem.update_s(0, 0)
    # The second block's average begins after three passes; the first one's follows on the links.
    expected = 3 * passes_s + max(reduce_s, passes_s) + reduce_s + updates_s
    assert compute_step_s(problem, plan) == pytest.approx(expected)


@given(
    st.integers(1, 40),
    *(st.lists(st.floats(0.0, 9.0), min_size=3, max_size=3).filter(any) for _ in range(2)),
    st.integers(1, 8),
)
def test_flows_carry_every_sample_of_the_batch_once(
    batch: int, before: list[float], after: list[float], micro_batches: int
) -> None:
    src, dst = (BlockPlacement(divide_samples(batch, weights)) for weights in (before, after))
    total = 0
    for micro_batch in range(micro_batches):
        flows = list(list_flows(src, dst, micro_batch, micro_batches))
        for placement, end in ((src, 0), (dst, 1)):
            counts = [0, 0, 0]
            for flow in flows:
                counts[flow[end]] += flow[2]
            assert tuple(counts) == placement.divide(micro_batch, micro_batches)
        total += sum(count for *_, count in flows)
    assert total == batch
    assert all(a == b for a, b, _ in list_flows(src, src, 0, micro_batches))


@given(st.integers(1, 100), st.lists(st.floats(0.1, 10.0), min_size=1, max_size=6))
def test_samples_are_divided_whole_and_in_proportion(batch: int, weights: list[float]) -> None:
    counts = divide_samples(batch, weights)
    assert sum(counts) == batch
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count - batch * weight / sum(weights)) < 1


tasks = st.integers(1, 7).flatmap(
    lambda count: st.tuples(
        *(
            st.tuples(
                st.floats(0.0, 5.0),
                st.sets(st.integers(0, 2), max_size=2),
                st.sets(st.integers(0, max(place - 1, 0)), max_size=2 if place else 0),
                st.floats(0.0, 1.0),
            )
            for place in range(count)
        )
    )
)


@given(tasks, st.randoms(use_true_random=False))
def test_a_schedule_keeps_order_and_resources(
    drawn: tuple[tuple[float, set[int], set[int], float], ...], rng: random.Random
) -> None:
    known = [ResourceTask(s, tuple(sorted(r)), tuple(sorted(a)), d) for s, r, a, d in drawn]
    ranks = compute_upward_ranks(known)
    found = schedule_tasks(known, [rng.random() for _ in known])
    for number, task in enumerate(known):
        assert found.ends_s[number] == pytest.approx(
            found.begins_s[number] + task.seconds + task.delay_s
        )
        assert found.begins_s[number] + ranks[number] <= found.makespan_s + 1e-9
        for before in task.after:
            assert found.begins_s[number] >= found.ends_s[before] - 1e-9
        for other in range(number):
            if {*task.resources} & {*known[other].resources}:
                first, second = sorted(
                    (number, other), key=lambda each: (found.begins_s[each], known[each].seconds)
                )
                over_s = found.begins_s[first] + known[first].seconds
                assert found.begins_s[second] >= over_s - 1e-9


@pytest.mark.parametrize("seed", range(6))
def test_no_order_is_shorter_than_the_shortest_of_all(seed: int) -> None:
    problem = generate_problem(seed, blocks=3)
    for placement in list_few_placements(problem)[3:]:
        plan = ModelPlan((placement, place_on(problem, seed % 3), placement), 1)
        usual_s, found = compute_step_s(problem, plan), evaluate_plan(problem, plan)
        shortest_s = find_shortest_s(problem, plan, math.inf)
        assert shortest_s <= found.step_s * (1 + 1e-9)
        assert found.step_s <= usual_s
        assert found.step_s == pytest.approx(shortest_s, rel=0.05)


def test_a_missing_link_is_infinite() -> None:
    problem = build_chain(blocks=2)
    one_way = PlanningProblem(
        problem.blocks,
        problem.edges,
        problem.devices,
        {(0, 1): problem.links[0, 1]},
        problem.batch,
    )
    split = ModelPlan((place_on(problem, 0), place_on(problem, 1)))
    assert compute_step_s(one_way, split) == math.inf
    assert not build_step_tasks(one_way, split).is_possible


@settings(deadline=None)
@given(st.integers(0, 1000))
def test_memory_is_that_of_all_blocks_on_a_device(seed: int) -> None:
    problem = generate_problem(seed, blocks=4, memory=True)
    options = list_placements(problem)
    plan = ModelPlan(tuple(options[(seed * 7 + block) % len(options)] for block in range(4)))
    needed = compute_memory(problem, plan)
    single = ModelPlan((place_on(problem, 0),) * 4)
    whole = 4 * sum(each.parameter_bytes for each in problem.blocks) + 4 * 2e4 * problem.batch
    assert compute_memory(problem, single)[0] == pytest.approx(whole)
    assert sum(needed) >= whole * (1 - 1e-9)
    limits = [device.memory_bytes or math.inf for device in problem.devices]
    assert fits_memory(problem, plan) == all(
        each <= limit for each, limit in zip(needed, limits, strict=True)
    )


def test_a_model_larger_than_all_memory_is_refused_with_what_is_missing() -> None:
    problem = build_chain()
    devices = tuple(
        PlanDevice(each.name, each.forward, each.backward, 1e6) for each in problem.devices
    )
    small = PlanningProblem(problem.blocks, problem.edges, devices, problem.links, problem.batch)
    with pytest.raises(InputError, match=r"needs 9\.002 MB.*2 MB, which is 7\.002 MB less"):
        require_memory(small)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 0}, "batch is 0"),
        ({"edges": (BlockEdge(1, 0, 1.0),)}, "later block"),
        ({"blocks": ()}, "blocks: none"),
    ],
)
def test_impossible_problems_are_refused(change: dict[str, object], message: str) -> None:
    problem = build_chain()
    known = {name: getattr(problem, name) for name in ("blocks", "edges", "devices", "links")}
    with pytest.raises(InputError, match=message):
        PlanningProblem(**{"batch": 8, **known, **change})  # type: ignore[arg-type]


def test_two_devices_of_one_name_and_blocks_without_times_are_refused() -> None:
    problem = build_chain()
    twice = (problem.devices[0], problem.devices[0])
    with pytest.raises(InputError, match="devices: d0"):
        PlanningProblem(problem.blocks, problem.edges, twice, problem.links, 8)
    short = PlanDevice("x", problem.devices[0].forward[:1], problem.devices[0].backward)
    with pytest.raises(InputError, match="times of 1 of 3 blocks"):
        PlanningProblem(problem.blocks, problem.edges, (short,), problem.links, 8)
