"""The exchange of models by itself: atomic under any delays, time-outs and losses of ranks, and
what follows from that."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from itertools import count

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.core.rules.graph import Graph, find_partners, is_active
from laggard.workloads.strategies.background.current_model import CurrentModel
from laggard.workloads.strategies.background.pair_exchange_rule import (
    MAX_OPEN_EXCHANGES,
    ExchangedModel,
    PairExchangeRule,
)

TIMEOUT = 20
GRAPHS: st.SearchStrategy[Graph] = st.sampled_from(["ring", "complete"])
delays = st.lists(st.integers(5, 60), min_size=40, max_size=40)


def model(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def of(rank: int) -> torch.Tensor:
    return model(rank, rank % 2, 1.0)


@dataclass
class Simulated:
    """Ranks that train and exchange over connections that keep order and take time: event by event,
    with a ledger of all halves."""

    graph: Graph
    world_size: int
    times: list[int]
    seed: int = 0
    learns: bool = True
    dies: dict[int, int] = field(default_factory=dict)
    timeout: int = TIMEOUT
    now: int = 0
    sent: set[tuple[int, int]] = field(default_factory=set)
    moved: dict[tuple[int, int], int] = field(default_factory=dict)
    owed: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)
    settled: set[tuple[int, int]] = field(default_factory=set)
    ranks: dict[int, PairExchangeRule] = field(init=False)
    learnt: torch.Tensor = field(init=False)
    most_open: int = 0

    def __post_init__(self) -> None:
        world = range(self.world_size)
        self.ranks = {
            rank: PairExchangeRule(
                rank,
                world,
                self.graph,
                self.timeout,
                CurrentModel(of(rank)),
                random.Random(rank + self.seed),
            )
            for rank in world
        }
        self.learnt = torch.stack([of(rank) for rank in world]).sum(dim=0)
        self._ticks, self._events, self._free = count(), [], {}
        self._drawn = count()

    _events: list[tuple[int, int, str, int, tuple[int, bool, ExchangedModel | None]]] = field(
        init=False
    )

    def run(self, until: int) -> None:
        for rank in self.ranks:
            self._later(self._draw(), "step", rank)
        for rank, when in self.dies.items():
            self._later(when, "die", rank)
        while self._events:
            self.now, _, what, rank, (sender, answers, parcel) = heapq.heappop(self._events)
            if rank not in self.ranks:
                continue
            if what == "die":
                del self.ranks[rank]
                for other in self.ranks:
                    self._over_connection(rank, other, "gone", (rank, False, None))
            elif what == "gone":
                self.ranks[rank].remove_member(sender)
            elif what == "step" and self.now < until:
                self._step(rank)
            elif what == "parcel":
                assert parcel is not None
                self._on_message(rank, sender, answers, parcel)
            self.most_open = max(
                [self.most_open, *(each.open_exchanges for each in self.ranks.values())]
            )
            self.check_the_ledger()

    def _draw(self) -> int:
        return self.times[next(self._drawn) * 7 % len(self.times)]

    def _later(
        self,
        delay: int,
        what: str,
        rank: int,
        about: tuple[int, bool, ExchangedModel | None] = (-1, False, None),
    ) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._ticks), what, rank, about))

    def _over_connection(
        self, src: int, dst: int, what: str, about: tuple[int, bool, ExchangedModel | None]
    ) -> None:
        """In the order in which it was sent."""
        arrives = max(self._free.get((src, dst), 0), self.now + self._draw())
        self._free[src, dst] = arrives
        heapq.heappush(self._events, (arrives, next(self._ticks), what, dst, about))

    _free: dict[tuple[int, int], int] = field(init=False)

    def _step(self, rank: int) -> None:
        """A gradient that was computed on an old model is applied, and an exchange is begun."""
        mine = self.ranks[rank]
        read = mine.current.latest
        if self.learns:
            change = model(1.0, -0.5, self._draw() / 64)
            self.learnt = self.learnt + change
            mine.current.learn(read, read.model + change)
        parcel = mine.offer(self.now)
        if parcel is not None:
            assert is_active(sorted({rank, *mine._present}), rank)
            self.sent.add((rank, parcel.number))
            self._over_connection(rank, parcel.rank, "parcel", (rank, False, parcel))
        self._later(self._draw(), "step", rank)

    def _on_message(self, rank: int, sender: int, answers: bool, parcel: ExchangedModel) -> None:
        mine = self.ranks[rank]
        if answers:
            if mine.on_reply(parcel.number, parcel.model):
                assert (rank, parcel.number) not in self.settled
                self.settled.add((rank, parcel.number))
                del self.owed[rank, parcel.number]
            return
        answer = mine.on_offer(sender, parcel.number, parcel.model)
        if answer is not None:
            assert (sender, parcel.number) not in self.moved
            self.moved[sender, parcel.number] = rank
            self.owed[sender, parcel.number] = (parcel.model - answer.model) / 2
            self._over_connection(rank, sender, "parcel", (rank, True, answer))

    def check_the_ledger(self) -> None:
        """Models, and halves that are still to come, add up to all that was learnt: as long as
        nobody is lost."""
        if self.dies or not self.learns:
            return
        models = [each.current.latest.model for each in self.ranks.values()]
        whole = torch.stack([*models, *(-half for half in self.owed.values())]).sum(dim=0)
        torch.testing.assert_close(whole, self.learnt, rtol=0, atol=1e-8)

    @property
    def spread(self) -> float:
        models = torch.stack([each.current.latest.model for each in self.ranks.values()])
        return float((models.max(dim=0).values - models.min(dim=0).values).max())


@settings(max_examples=30, deadline=None)
@given(GRAPHS, st.integers(1, 6), delays, st.integers(0, 5))
def test_no_update_and_no_half_is_lost(
    graph: Graph, world: int, times: list[int], seed: int
) -> None:
    """Answers take up to three time-outs; the ledger is checked at every event, and in the end
    nothing is owed."""
    simulated = Simulated(graph, world, times, seed)
    simulated.run(until=600)
    assert simulated.most_open <= MAX_OPEN_EXCHANGES
    assert simulated.sent == set(simulated.moved) == simulated.settled
    total = torch.stack([each.current.latest.model for each in simulated.ranks.values()]).sum(dim=0)
    torch.testing.assert_close(total, simulated.learnt, rtol=0, atol=1e-8)
    assert all(each.open_exchanges == 0 for each in simulated.ranks.values())
    assert world == 1 or simulated.settled


@settings(max_examples=30, deadline=None)
@given(
    GRAPHS,
    st.integers(2, 6),
    delays,
    st.dictionaries(st.integers(0, 5), st.integers(0, 500), max_size=3),
)
def test_those_left_have_done_both_halves_or_none(
    graph: Graph, world: int, times: list[int], dies: dict[int, int]
) -> None:
    simulated = Simulated(
        graph, world, times, dies={rank: when for rank, when in dies.items() if rank < world}
    )
    simulated.run(until=900)
    left = set(simulated.ranks)
    for (active, number), passive in simulated.moved.items():
        if {active, passive} <= left:
            assert (active, number) in simulated.settled
    assert all(each.open_exchanges == 0 for each in simulated.ranks.values())
    late = [key for key, passive in simulated.moved.items() if key[0] in left and passive in left]
    assert len(left) < 2 or late, "those who are left go on"
    everywhere = [each.offer(10**6) for each in simulated.ranks.values()]
    assert (len(left) >= 2) == any(parcel is not None for parcel in everywhere)
    assert {parcel.rank for parcel in everywhere if parcel is not None} <= left


@settings(max_examples=15, deadline=None)
@given(GRAPHS, st.integers(2, 6), delays, st.integers(0, 5), st.sampled_from([1, TIMEOUT, 10**6]))
def test_models_become_one_and_it_is_their_mean(
    graph: Graph, world: int, times: list[int], seed: int, timeout: int
) -> None:
    """Whether answers are always overdue, sometimes, or never."""
    simulated = Simulated(graph, world, times, seed, learns=False, timeout=timeout)
    mean = simulated.learnt / world
    simulated.run(until=8000)
    assert simulated.spread < 0.05
    torch.testing.assert_close(simulated.ranks[0].current.latest.model, mean, rtol=0, atol=0.05)


def pair(timeout: int = TIMEOUT) -> tuple[PairExchangeRule, PairExchangeRule]:
    first, second = (
        PairExchangeRule(rank, range(2), "ring", timeout, CurrentModel(of(rank)), random.Random(0))
        for rank in range(2)
    )
    return first, second


def test_both_end_with_the_mean_and_keep_what_they_learnt_meanwhile() -> None:
    active, passive = pair()
    assert passive.offer(0) is None
    offered = active.offer(0)
    assert offered is not None
    read = active.current.latest
    active.current.learn(read, read.model + model(8.0, 0.0, 0.0))
    answer = passive.on_offer(0, offered.number, offered.model)
    assert answer is not None
    assert torch.equal(answer.model, of(1))
    assert torch.equal(passive.current.latest.model, model(0.5, 0.5, 1.0))
    assert active.on_reply(answer.number, answer.model)
    assert torch.equal(active.current.latest.model, model(8.5, 0.5, 1.0))
    assert not active.on_reply(answer.number, answer.model), "an answer counts once"


def test_staleness_is_the_exchanges_between_reading_and_applying() -> None:
    _, passive = pair()
    read = passive.current.latest
    for number in (1, 2):
        passive.on_offer(0, number, model(5.0, 1.0, 1.0))
    after = passive.current.learn(read, read.model - model(0.25, 0.0, 0.0))
    assert (read.version, after.version) == (0, 3)
    assert torch.equal(after.model, model(4.0 - 0.25, 1.0, 1.0))


def test_who_is_overdue_is_left_alone_and_another_is_asked() -> None:
    active = PairExchangeRule(
        0, range(6), "complete", TIMEOUT, CurrentModel(of(0)), random.Random(0)
    )
    first = active.offer(0)
    assert first is not None
    assert active.offer(TIMEOUT - 1) is None
    second = active.offer(TIMEOUT)
    assert second is not None
    assert second.rank != first.rank
    assert active.offer(10 * TIMEOUT) is None, "two answers are overdue"
    active.remove_member(second.rank)
    third = active.offer(10 * TIMEOUT)
    assert third is not None
    assert third.rank not in {first.rank, second.rank}
    assert active.on_reply(first.number, of(first.rank)), "late, and yet applied"
    assert not active.on_reply(second.number, of(second.rank))


def test_nothing_moves_for_who_is_gone() -> None:
    _, passive = pair()
    passive.remove_member(0)
    assert passive.on_offer(0, 1, of(0)) is None
    assert torch.equal(passive.current.latest.model, of(1))


@given(GRAPHS, st.sets(st.integers(0, 30), min_size=1, max_size=12))
def test_partners_make_a_connected_bipartite_graph_of_whoever_is_there(
    graph: Graph, present: set[int]
) -> None:
    ranks = sorted(present)
    reached, border = {ranks[0]}, [ranks[0]]
    while border:
        rank = border.pop()
        for other in find_partners(graph, ranks, rank):
            assert is_active(ranks, rank) != is_active(ranks, other)
            assert rank in find_partners(graph, ranks, other)
            if other not in reached:
                reached.add(other)
                border.append(other)
    assert reached == present


@pytest.mark.parametrize("open_ones", [2, 3, 4, 5])
def test_more_open_exchanges_would_move_models_apart(open_ones: int) -> None:
    """Why there are at most two: one rank at 1 that exchanges with k at 0 leaves 1 - k/2 of
    itself."""
    mine = 1 - open_ones / 2
    models = torch.tensor([mine, *[0.5] * open_ones], dtype=torch.float64)
    before = torch.tensor([1.0, *[0.0] * open_ones], dtype=torch.float64)
    assert (models.var() < before.var()) == (open_ones <= MAX_OPEN_EXCHANGES)
