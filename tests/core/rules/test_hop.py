"""Hop's rules by themselves: bounds, progress and averages under random delays and losses; times
against the recurrence that they mean."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.core.rules.graph import Graph, compute_mixing_weights, find_neighbors
from laggard.core.rules.hop import HopRule, HopStepEnd, StepNotice
from laggard.workloads.strategies.peer.hop import HopParameters
from tests.core.rules.mesh import Mesh, Sent, come_and_go

Model = tuple[int, int]
STEPS = 14


@dataclass
class Rank:
    """A rule in the mesh; its model of a step is its name and the step."""

    rule: HopRule[Model]
    endings: list[tuple[int, HopStepEnd[Model]]] = field(default_factory=list)

    @property
    def step(self) -> int:
        return self.rule.step

    def sends(self) -> Sent:
        step = self.rule.step
        return [
            (n.rank, (step, (self.rule.rank, step) if n.with_model else None))
            for n in self.rule.build_notices()
        ]

    def receive(self, sender: int, message: object) -> Sent:
        assert isinstance(message, tuple)
        version, model = message
        if model is None:
            self.rule.announce(sender, version)
        else:
            self.rule.receive(sender, version, model)
        return []

    def remove_member(self, rank: int) -> None:
        self.rule.remove_member(rank)

    def add_member(self, rank: int, step: int) -> Sent:
        self.rule.add_member(rank)
        return []

    def start_at_step(self, step: int, present: Collection[int]) -> None:
        self.rule = HopRule(self.rule.rank, self.rule.world_size, self.rule.parameters)
        self.rule.start_at_step(step, present)

    def can_end(self) -> bool:
        return self.rule.can_end()

    def end(self) -> None:
        step = self.rule.step
        self.endings.append((step, self.rule.end()))


@st.composite
def bounds(draw: st.DrawFn, world: int) -> HopParameters:
    graph: Graph = draw(st.sampled_from(["ring", "complete"]))
    staleness = draw(st.integers(0, 4))
    backups = draw(st.integers(0, max(0, len(find_neighbors(graph, range(world), 0)) - 1)))
    gap = staleness + draw(st.integers(1, 4))
    skip = draw(st.integers(0, 5)) if staleness or (backups and gap > 1) else 0
    return HopParameters(
        name="hop",
        graph=graph,
        staleness=staleness,
        backups=backups,
        max_iteration_gap=gap,
        skip=skip,
    )


@st.composite
def meshes(draw: st.DrawFn, *, deaths: bool) -> tuple[HopParameters, Mesh, dict[int, Rank]]:
    world = draw(st.integers(1, 6))
    parameters = draw(bounds(world))
    times = draw(st.lists(st.sampled_from([1.0, 2.0, 3.0, 10.0, 40.0]), min_size=97, max_size=97))
    ways = draw(st.lists(st.sampled_from([0.0, 0.5, 5.0, 60.0]), min_size=36, max_size=36))
    dying = (
        draw(st.dictionaries(st.integers(0, world - 1), st.floats(0, 200), max_size=world - 1))
        if deaths
        else {}
    )
    ranks = {rank: Rank(HopRule(rank, world, parameters)) for rank in range(world)}
    mesh = Mesh(
        ranks, lambda r, k: times[(r * 37 + k * 11) % 97], lambda i, j: ways[i * 6 + j], dying
    )
    return parameters, mesh, ranks


def check_averages(parameters: HopParameters, rank: Rank) -> None:
    for step, ending in rank.endings:
        assert math.isclose(sum(ending.weights.values()), 1.0)
        assert all(weight >= 0 for weight in ending.weights.values())
        assert set(ending.weights) == {rank.rule.rank, *ending.models}
        assert ending.skipped <= parameters.skip
        taken = step + ending.skipped
        assert all(version >= taken - parameters.staleness for _, version in ending.models.values())
        assert ending.staleness <= max(parameters.staleness, parameters.skip)
    used = [model for _, ending in rank.endings for model in ending.models.values()]
    assert len(set(used)) == len(used)  # none twice


@settings(deadline=None, max_examples=60)
@given(meshes(deaths=False))
def test_no_gap_between_neighbours_is_wider_than_the_bound(
    made: tuple[HopParameters, Mesh, dict[int, Rank]],
) -> None:
    parameters, mesh, ranks = made
    bound = parameters.max_iteration_gap if parameters.backups else parameters.staleness + 1

    def check(rank: int) -> None:
        beside = find_neighbors(parameters.graph, range(len(ranks)), rank)
        assert all(ranks[rank].step - ranks[other].step <= bound for other in beside)

    mesh.begun = check
    mesh.run(STEPS)
    for rank in ranks.values():
        check_averages(parameters, rank)


@settings(deadline=None, max_examples=60)
@given(meshes(deaths=True))
def test_ranks_are_lost_and_the_others_go_on_within_bounds(
    made: tuple[HopParameters, Mesh, dict[int, Rank]],
) -> None:
    parameters, mesh, ranks = made

    def check(rank: int) -> None:
        beside = ranks[rank].rule.neighbors  # as far as it knows; one may have died unheard
        assert all(
            ranks[rank].step - ranks[other].step <= parameters.max_iteration_gap for other in beside
        )

    mesh.begun = check
    mesh.run(STEPS)
    for rank in mesh.alive:
        check_averages(parameters, ranks[rank])


@settings(deadline=None, max_examples=100)
@given(meshes(deaths=True), st.data())
def test_ranks_join_and_all_go_on(
    made: tuple[HopParameters, Mesh, dict[int, Rank]], data: st.DataObject
) -> None:
    parameters, mesh, ranks = made
    come_and_go(data, mesh)
    mesh.run(STEPS)
    for rank in mesh.alive:
        check_averages(parameters, ranks[rank])


@settings(deadline=None, max_examples=60)
@given(st.data(), st.integers(2, 6))
def test_steps_begin_when_the_recurrence_says(data: st.DataObject, world: int) -> None:
    """b(i, k+1) = max(b(i, k) + c(i, k), what is needed of b(j, k-s), all of b(j, k+1-gap)), each
    later by its way."""
    drawn = data.draw(bounds(world))
    parameters = drawn.model_copy(update={"skip": 0})
    times = data.draw(st.lists(st.floats(1, 50), min_size=97, max_size=97))
    ways = data.draw(st.lists(st.floats(0, 60), min_size=36, max_size=36))
    mesh = Mesh(
        {rank: Rank(HopRule(rank, world, parameters)) for rank in range(world)},
        lambda r, k: times[(r * 37 + k * 11) % 97],
        lambda i, j: ways[i * 6 + j],
    )
    mesh.run(STEPS)
    begun = dict.fromkeys([(rank, 0) for rank in range(world)], 0.0)
    for step in range(STEPS - 1):
        for rank in range(world):
            beside = find_neighbors(parameters.graph, range(world), rank)

            def heard(other: int, of: int, rank: int = rank) -> float:
                return begun[other, of] + ways[other * 6 + rank] if of >= 0 else 0.0

            models = sorted(heard(other, step - parameters.staleness) for other in beside)
            needed = models[len(beside) - parameters.backups - 1]
            tokens = max(heard(other, step + 1 - parameters.max_iteration_gap) for other in beside)
            computed = begun[rank, step] + times[(rank * 37 + step * 11) % 97]
            begun[rank, step + 1] = max(computed, needed, tokens)
    for (rank, step), when in begun.items():
        assert math.isclose(mesh.began_at[rank, step], when)


@given(st.integers(1, 6), st.sampled_from(["ring", "complete"]))
def test_without_slack_every_step_is_a_whole_one_of_gossip(world: int, graph: Graph) -> None:
    parameters = HopParameters(name="hop", graph=graph, staleness=0)
    ranks = {rank: Rank(HopRule(rank, world, parameters)) for rank in range(world)}
    Mesh(ranks, lambda r, k: 1.0 + (r * 7 + k * 3) % 5, lambda i, j: (i * 5 + j) % 4).run(STEPS)
    for name, rank in ranks.items():
        for step, ending in rank.endings:
            assert ending.weights == compute_mixing_weights(graph, range(world), name)
            assert ending.models == {
                other: (other, step) for other in find_neighbors(graph, range(world), name)
            }
            assert (ending.skipped, ending.staleness) == (0, 0)


def test_who_is_behind_jumps_to_where_its_neighbours_are_and_no_further_than_it_may() -> None:
    parameters = HopParameters(name="hop", staleness=0, backups=1, max_iteration_gap=8, skip=3)
    rule: HopRule[str] = HopRule(0, 3, parameters)
    for version in range(6):
        rule.receive(1, version, f"b{version}")
    for version in range(9):
        rule.receive(2, version, f"c{version}")
    ending = rule.end()
    assert (rule.step, ending.skipped) == (4, 3)
    assert ending.models == {1: "b3", 2: "c3"}  # as in step 3, of which it has no model itself
    assert ending.weights == pytest.approx({0: 0.0, 1: 0.5, 2: 0.5})
    assert ending.staleness == 3
    ending = rule.end()
    assert (rule.step, ending.skipped, ending.models) == (5, 0, {1: "b4", 2: "c4"})


def test_older_models_weigh_less() -> None:
    rule: HopRule[str] = HopRule(0, 3, HopParameters(name="hop", staleness=3, skip=0))
    for step in range(3):
        rule.receive(1, step, f"b{step}")
        rule.receive(2, 0, "c0") if step == 0 else None
        ending = rule.end()
    assert ending.models == {1: "b2"}  # the other's has been taken
    rule.receive(2, 1, "c1")
    rule.receive(1, 3, "b3")
    assert rule.can_end()
    ending = rule.end()
    assert ending.models == {1: "b3", 2: "c1"}
    assert ending.weights == pytest.approx(
        {0: 0.4, 1: 0.4, 2: 0.2}
    )  # the paper's equation 2: 4, 4 and 2 parts
    assert ending.staleness == 2


def test_who_is_too_far_ahead_for_a_model_is_only_told() -> None:
    rule: HopRule[str] = HopRule(0, 3, HopParameters(name="hop", staleness=2, backups=1))
    rule.receive(1, 2, "b2")
    rule.receive(2, 3, "c3")
    assert rule.build_notices() == (StepNotice(1, with_model=True), StepNotice(2, with_model=False))
    assert rule.build_notices() == ()
    rule.remove_member(1)
    assert rule.neighbors == (2,)


def test_who_comes_back_is_told_again_and_is_waited_for_until_it_says_something() -> None:
    rule: HopRule[str] = HopRule(0, 3, HopParameters(name="hop", staleness=0))
    rule.receive(1, 9, "b9")
    rule.receive(2, 0, "c0")
    assert [notice.with_model for notice in rule.build_notices()] == [False, True]
    assert rule.can_end()
    rule.add_member(1)
    assert rule.build_notices() == (StepNotice(1, with_model=True),)
    assert not rule.can_end()
    rule.receive(1, 0, "b0")
    assert rule.can_end()
    assert rule.end().models == {1: "b0", 2: "c0"}
