"""Ranks that pair off, by themselves: mutual exchanges and progress under random delays, losses,
and disagreement."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.core.rules.fast_links import (
    FastLinksMessage,
    FastLinksRule,
    FastLinksSend,
)
from laggard.core.rules.matching_policy import FloatArray
from laggard.workloads.strategies.peer.fast_links import FastLinksParameters
from tests.core.rules.mesh import Mesh, Sent, come_and_go

Model = tuple[int, int]


@dataclass
class Rank:
    """A rule in the mesh; its model of a step is its name and the step."""

    rule: FastLinksRule[Model]
    row: FloatArray
    taken: dict[int, Model | None] = field(default_factory=dict)
    refusals: int = 0
    _begun: int = -1

    @property
    def step(self) -> int:
        return self.rule.step

    def sends(self) -> Sent:
        if self._begun == self.step:
            return []
        self._begun = self.step
        return self._sent(self.rule.begin(self.row))

    def receive(self, sender: int, message: object) -> Sent:
        assert isinstance(message, tuple)
        word, step, what = message
        if word is FastLinksMessage.OFFER:
            return self._sent(self.rule.on_offer(sender, step, what))
        if word is FastLinksMessage.REFUSAL:
            self.refusals += 1
            self.rule.on_refusal(sender, step)
        else:
            self.rule.on_measurement(sender, step, what)
        return []

    def _sent(self, sends: tuple[FastLinksSend, ...]) -> Sent:
        what = {
            FastLinksMessage.OFFER: (self.rule.rank, self.step),
            FastLinksMessage.REFUSAL: None,
            FastLinksMessage.MEASURED: self.row,
        }
        return [
            (send.rank, (send.message_kind, send.step, what[send.message_kind])) for send in sends
        ]

    def remove_member(self, rank: int) -> None:
        self.rule.remove_member(rank)

    def add_member(self, rank: int, step: int) -> Sent:
        return [
            (rank, (FastLinksMessage.MEASURED, told, row))
            for told, row in self.rule.add_member(rank, step)
        ]

    def start_at_step(self, step: int, present: Collection[int]) -> None:
        rule = self.rule
        self.rule = FastLinksRule(rule.rank, rule.world_size, rule.parameters, rule.seed)
        self.rule.start_at_step(step, present)

    def can_end(self) -> bool:
        return self.rule.can_end()

    def end(self) -> None:
        step = self.step
        self.taken[step] = self.rule.end()


@st.composite
def meshes(
    draw: st.DrawFn, *, deaths: bool, agreed: bool = True
) -> tuple[int, Mesh, dict[int, Rank]]:
    world, every = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    parameters = FastLinksParameters(name="fast_links", every=every, mixing=0.2)
    times = draw(st.lists(st.sampled_from([1.0, 2.0, 3.0, 10.0, 40.0]), min_size=97, max_size=97))
    ways = draw(st.lists(st.sampled_from([0.0, 0.5, 5.0, 60.0]), min_size=36, max_size=36))
    rows = np.random.default_rng(draw(st.integers(0, 99))).exponential(size=(world, world + 1))
    dying = (
        draw(st.dictionaries(st.integers(0, world - 1), st.floats(0, 200), max_size=world - 1))
        if deaths
        else {}
    )
    ranks = {
        rank: Rank(FastLinksRule(rank, world, parameters, seed=3 if agreed else rank), rows[rank])
        for rank in range(world)
    }
    mesh = Mesh(
        ranks, lambda r, k: times[(r * 37 + k * 11) % 97], lambda i, j: ways[i * 6 + j], dying
    )
    return every, mesh, ranks


@settings(deadline=None, max_examples=30)
@given(meshes(deaths=False))
def test_exchanges_are_mutual_and_nobody_is_two_agreements_ahead(
    made: tuple[int, Mesh, dict[int, Rank]],
) -> None:
    every, mesh, ranks = made

    def check(rank: int) -> None:
        assert all(ranks[rank].step - other.step < 2 * every + 1 for other in ranks.values())

    mesh.begun = check
    mesh.run(12)
    for step in range(12):
        met = {rank: each.taken[step] for rank, each in ranks.items()}
        assert sum(model is None for model in met.values()) == len(ranks) % 2
        assert all(
            model[1] == step and met[model[0]] == (rank, step)
            for rank, model in met.items()
            if model
        )
    assert not any(rank.refusals for rank in ranks.values())


@settings(deadline=None, max_examples=30)
@given(meshes(deaths=True, agreed=False))
def test_ranks_that_draw_different_pairs_go_on_and_exchange_mutually_or_not_at_all(
    made: tuple[int, Mesh, dict[int, Rank]],
) -> None:
    _, mesh, ranks = made
    mesh.run(20)
    check_mutual(mesh, ranks)


def check_mutual(mesh: Mesh, ranks: dict[int, Rank]) -> None:
    """Whose model is taken takes one's own in the same step, if both live."""
    for rank in mesh.alive:
        for step, model in ranks[rank].taken.items():
            if model is not None:
                assert model[1] == step
                if model[0] in mesh.alive and step < 20:
                    assert ranks[model[0]].taken[step] == (rank, step)


@settings(deadline=None, max_examples=30)
@given(meshes(deaths=True))
def test_ranks_are_lost_and_the_others_go_on(made: tuple[int, Mesh, dict[int, Rank]]) -> None:
    _, mesh, ranks = made
    mesh.run(20)
    check_mutual(mesh, ranks)
    settled = {rank: ranks[rank].rule.policy for rank in mesh.alive}
    assert all(set(policy.ranks) >= set(mesh.alive) for policy in settled.values())


@settings(deadline=None, max_examples=20)
@given(meshes(deaths=True), st.data())
def test_ranks_join_and_all_go_on(
    made: tuple[int, Mesh, dict[int, Rank]], data: st.DataObject
) -> None:
    _, mesh, ranks = made
    come_and_go(data, mesh)
    mesh.run(20)
    for rank in mesh.alive:
        assert all(model is None or model[1] == step for step, model in ranks[rank].taken.items())


def test_who_is_offered_a_model_by_anybody_else_refuses_it() -> None:
    rule: FastLinksRule[str] = FastLinksRule(0, 2, FastLinksParameters(name="fast_links"), seed=0)
    nothing = np.full(3, np.nan)
    assert rule.begin(nothing) == (FastLinksSend(1, FastLinksMessage.OFFER, 0),)
    assert rule.on_offer(3, 0, "stranger") == (FastLinksSend(3, FastLinksMessage.REFUSAL, 0),)
    assert rule.on_offer(3, 1, "early") == ()
    assert not rule.can_end()
    rule.on_refusal(1, 0)
    assert rule.can_end()
    assert rule.end() is None
    assert set(rule.begin(nothing)) == {
        FastLinksSend(1, FastLinksMessage.OFFER, 1),
        FastLinksSend(3, FastLinksMessage.REFUSAL, 1),
    }
    assert rule.on_offer(1, 0, "late") == (FastLinksSend(1, FastLinksMessage.REFUSAL, 0),)
    assert rule.on_offer(1, 1, "model") == ()
    rule.remove_member(1)
    assert rule.end() == "model"


def test_what_was_measured_makes_the_policy_of_a_period_later() -> None:
    parameters = FastLinksParameters(name="fast_links", every=2, mixing=0.1, explore=0.01)
    rule: FastLinksRule[str] = FastLinksRule(0, 4, parameters, seed=0)
    slow = np.full((4, 5), 9.0)
    slow[0, 1] = slow[1, 0] = slow[2, 3] = slow[3, 2] = 0.1
    slow[:, 4] = 0.0
    told: list[FastLinksSend] = []
    for step in range(4):
        told += [
            send for send in rule.begin(slow[0]) if send.message_kind is FastLinksMessage.MEASURED
        ]
        if rule.partner is not None:
            rule.on_offer(rule.partner, step, "model")
        if step == 3:
            assert not rule.can_end()  # the others' rows are not there
            for rank in (1, 2, 3):
                rule.on_measurement(rank, 2, slow[rank])
        assert rule.can_end()
        before = rule.policy
        rule.end()
    assert told == [FastLinksSend(rank, FastLinksMessage.MEASURED, 2) for rank in (1, 2, 3)]
    assert np.ptp(before.probabilities) == 0
    assert rule.policy.matchings[int(rule.policy.probabilities.argmax())] == ((0, 1), (2, 3))
    assert rule.policy.probabilities.max() > 0.5
