"""Searches of plans: against trying everything, against known plans, and with limits."""

from __future__ import annotations

import dataclasses
import math

import pytest

from laggard.core.cost_model.links import NetworkHop
from laggard.core.errors import InputError
from laggard.predict.planning.exact_search import find_exact_plan
from laggard.workloads.planning.baselines import list_baselines, list_pipelines
from laggard.workloads.planning.evaluate_plan import compute_step_s
from laggard.workloads.planning.local_search import SearchOptions, search_plan
from laggard.workloads.planning.placement_choices import list_clusters, list_placements
from laggard.workloads.planning.placements import ModelPlan, ReplicaAverage
from laggard.workloads.planning.plan_memory import fits_memory
from laggard.workloads.planning.planning_problem import PlanningProblem
from tests.workloads.planning.generated_problems import (
    find_optimum,
    generate_problem,
    list_few_placements,
)


def few(problem: PlanningProblem, **options: object) -> SearchOptions:
    return SearchOptions(
        placements=list_few_placements(problem),
        micro_batches=(1,),
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("memory", [False, True])
def test_the_exact_search_finds_the_optimum_of_all_plans_and_orders(
    seed: int, memory: bool
) -> None:
    problem = generate_problem(seed, blocks=3, memory=memory)
    placements = list_few_placements(problem)
    found = search_plan(problem, few(problem))
    exact = find_exact_plan(problem, placements, found)
    optimum_s = find_optimum(problem, placements)
    if memory:
        # Trying everything does not know memory.
        assert fits_memory(problem, exact.plan)
        assert exact.step_s >= optimum_s * (1 - 1e-4)
    else:
        assert exact.step_s == pytest.approx(optimum_s, rel=1e-4)
    assert exact.is_optimal
    assert exact.bound_s <= exact.step_s * (1 + 1e-9)
    # Of few blocks, the order of tasks matters more than what a local search looks at.
    assert found.step_s <= exact.step_s * 1.15
    assert "Optimal" in exact.format_certificate()


@pytest.mark.parametrize("seed", [6, 9])
def test_two_messages_between_the_same_devices_have_an_order(seed: int) -> None:
    # The output of the first of four blocks is read by the second one and by the third one.
    problem = generate_problem(seed, blocks=4)
    placements = list_few_placements(problem)
    exact = find_exact_plan(problem, placements, search_plan(problem, few(problem)))
    assert exact.is_optimal
    assert exact.step_s == pytest.approx(find_optimum(problem, placements), rel=1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_a_plan_is_not_worse_than_any_known_one(seed: int) -> None:
    problem = generate_problem(seed, blocks=6, devices=4, memory=seed % 2 == 1)
    found = search_plan(problem, SearchOptions(evaluations=1500))
    assert fits_memory(problem, found.plan)
    known = [*list_baselines(problem).values(), *list_pipelines(problem, 2)]
    assert found.step_s <= min(compute_step_s(problem, each) for each in known)
    assert found.step_s <= compute_step_s(problem, found.plan)
    assert found == search_plan(problem, SearchOptions(evaluations=1500))


def test_equal_devices_behind_slow_links_are_left_alone() -> None:
    problem = generate_problem(1, blocks=4)
    slow = {ends: NetworkHop(hop.ends, 0.01, 100.0) for ends, hop in problem.links.items()}
    found = search_plan(dataclasses.replace(problem, links=slow))
    assert len({device for each in found.plan.placements for device in each.devices}) == 1


def test_parameter_server_and_all_reduce_change_places_at_the_analytic_rate() -> None:
    problem = generate_problem(3, blocks=1)
    equal = dataclasses.replace(
        problem,
        devices=tuple(
            dataclasses.replace(problem.devices[0], name=each.name) for each in problem.devices
        ),
    )
    even = [
        each
        for each in list_baselines(equal).values()
        if each.placements[0].average is not ReplicaAverage.NONE
    ]
    size_bytes = equal.blocks[0].parameter_bytes

    def compare(server_mbps: float) -> float:
        """Return the seconds that a server takes longer, which has links of its own rate."""
        links = {
            ends: NetworkHop(hop.ends, server_mbps if 0 in ends else 100.0, 0.0)
            for ends, hop in equal.links.items()
        }
        own = dataclasses.replace(equal, links=links)
        seconds = {each.placements[0].average: compute_step_s(own, each) for each in even}
        return seconds[ReplicaAverage.SERVER] - seconds[ReplicaAverage.ALL_REDUCE]

    # A server's links carry the parameters up and down; a ring's carry 4/3 of them, at the rate of
    # the slowest link. So the ring is faster at any rate of the server's links up to 1.5 times
    # that of the others, and not above.
    assert compare(149.0) > 0 > compare(151.0)
    assert size_bytes > 0


def test_devices_that_fast_links_connect_are_tried_together() -> None:
    problem = generate_problem(1, blocks=2, devices=4)

    def connect(fast: set[tuple[int, int]], rest: float | None) -> PlanningProblem:
        links = {
            ends: NetworkHop(hop.ends, 1000.0 if tuple(sorted(ends)) in fast else rest or 1.0, 1.0)
            for ends, hop in problem.links.items()
            if rest is not None or tuple(sorted(ends)) in fast
        }
        return dataclasses.replace(problem, links=links)

    near = connect({(0, 2), (1, 3)}, 5.0)
    assert list_clusters(near) == ((0, 2), (1, 3), (0, 1, 2, 3))
    tried = {each.devices for each in list_placements(near)}
    assert {(0, 2), (1, 3), (0, 1, 2, 3), (0,), (3,)} <= tried
    assert list_clusters(connect({(0, 2), (1, 3)}, None)) == ((0, 2), (1, 3))
    # Replicas that are near to each other are better than all of them.
    devices = tuple(
        dataclasses.replace(problem.devices[0], name=each.name) for each in problem.devices
    )
    equal = dataclasses.replace(connect({(1, 3)}, 0.5), devices=devices)
    found = search_plan(equal)
    assert {each.devices for each in found.plan.placements} <= {(1,), (3,), (1, 3)}
    assert any(each.devices == (1, 3) for each in found.plan.placements)


def test_what_fits_on_no_device_is_divided() -> None:
    problem = generate_problem(5, blocks=6)
    whole = 3 * sum(each.parameter_bytes for each in problem.blocks)
    devices = tuple(dataclasses.replace(each, memory_bytes=0.7 * whole) for each in problem.devices)
    limited = dataclasses.replace(problem, devices=devices)
    assert all(
        compute_step_s(limited, plan) == math.inf for plan in list_baselines(limited).values()
    )
    found = search_plan(limited)
    assert math.isfinite(found.step_s)
    assert fits_memory(limited, found.plan)


def test_without_links_and_memory_there_is_no_plan() -> None:
    problem = generate_problem(5, blocks=3)
    devices = tuple(
        dataclasses.replace(
            each, memory_bytes=3.3 * max(block.parameter_bytes for block in problem.blocks) + 5e5
        )
        for each in problem.devices
    )
    alone = dataclasses.replace(problem, devices=devices, links={})
    with pytest.raises(InputError, match=r"no plan was found|needs"):
        search_plan(alone)


def test_micro_batches_fill_a_pipeline() -> None:
    problem = generate_problem(2, blocks=4)
    fast = {ends: NetworkHop(hop.ends, 1e5, 0.0) for ends, hop in problem.links.items()}
    devices = tuple(
        dataclasses.replace(
            problem.devices[0],
            name=each.name,
            memory_bytes=2.2 * sum(block.parameter_bytes for block in problem.blocks),
        )
        for each in problem.devices
    )
    found = search_plan(dataclasses.replace(problem, links=fast, devices=devices))
    assert found.plan.micro_batches > 1
    unsplit = ModelPlan(found.plan.placements, 1)
    assert compute_step_s(problem, unsplit) > 0
