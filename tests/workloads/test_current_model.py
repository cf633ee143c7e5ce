"""A model that is moved by averages of all and exchanges of two at the same time: under random
delays, over connections that keep order."""

from __future__ import annotations

import heapq
import random
from itertools import count

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from laggard.workloads.strategies.background.async_averager import (
    AsyncAverager,
    AverageResult,
    AveragingPolicy,
    Contribution,
)
from laggard.workloads.strategies.background.current_model import CurrentModel
from laggard.workloads.strategies.background.pair_exchange_rule import (
    ExchangedModel,
    PairExchangeRule,
)
from laggard.workloads.transport.frames import Message

NEVER = 10**9
About = tuple[int, bool, ExchangedModel | Message | None]


def at_a_corner(rank: int, world: int) -> torch.Tensor:
    """As far apart as models can be: each has a number of its own that is 1."""
    return torch.eye(world, dtype=torch.float64)[rank]


class Simulated:
    """Ranks that take steps, in which they learn nothing, and go two by two while averages of all
    are under way; event by event."""

    def __init__(self, world: int, times: list[int], steps: int) -> None:
        self.world, self.times = world, times
        self.models = [CurrentModel(at_a_corner(rank, world)) for rank in range(world)]
        self.exchanges = [
            PairExchangeRule(
                rank, range(world), "complete", NEVER, self.models[rank], random.Random(rank)
            )
            for rank in range(world)
        ]
        self.members = [self._member(rank, AveragingPolicy(steps)) for rank in range(world)]
        self.now, self._ticks, self._drawn = 0, count(), count()
        self._free: dict[tuple[int, int], int] = {}
        self._events: list[tuple[int, int, int, About]] = []

    def _member(self, rank: int, policy: AveragingPolicy) -> AsyncAverager:
        current = self.models[rank]

        def on_average_done(outcome: AverageResult) -> None:
            assert outcome.delta is not None
            current.apply_mean(outcome.delta)

        return AsyncAverager(
            rank,
            range(self.world),
            policy,
            0.5,
            contribute=lambda: Contribution(current.contribute(), 1),
            on_average_done=on_average_done,
            clock_ns=lambda: self.now,
        )

    def run(self, until: int) -> None:
        for rank in range(self.world):
            self._push(self._draw(), rank, (rank, False, None))
        while self._events:
            self.now, _, rank, (sender, answers, what) = heapq.heappop(self._events)
            if what is None and self.now < until:
                self._step(rank)
            elif isinstance(what, ExchangedModel):
                self._on_message(rank, sender, what, answers=answers)
            elif isinstance(what, Message):
                self.members[rank].receive(what)
            self._post(rank)
            self.check_the_hull(rank)

    def _step(self, rank: int) -> None:
        self.members[rank].record_steps(1, 10)
        offered = self.exchanges[rank].offer(self.now)
        if offered is not None:
            self._send(rank, offered.rank, (rank, False, offered))
        self._push(self.now + self._draw(), rank, (rank, False, None))

    def _on_message(self, rank: int, sender: int, parcel: ExchangedModel, *, answers: bool) -> None:
        if answers:
            self.exchanges[rank].on_reply(parcel.number, parcel.model)
            return
        answer = self.exchanges[rank].on_offer(sender, parcel.number, parcel.model)
        assert answer is not None
        self._send(rank, sender, (rank, True, answer))

    def _post(self, rank: int) -> None:
        outbox = self.members[rank].outbox
        while outbox:
            to, message = outbox.popleft()
            sent = Message(
                message.kind, message.version, message.values, message.tensor, sender=rank
            )
            self._send(rank, to, (rank, False, sent))

    def _draw(self) -> int:
        return self.times[next(self._drawn) * 7 % len(self.times)]

    def _send(self, src: int, dst: int, about: About) -> None:
        arrives = max(self._free.get((src, dst), 0), self.now + self._draw())
        self._free[src, dst] = arrives
        self._push(arrives, dst, about)

    def _push(self, when: int, rank: int, about: About) -> None:
        heapq.heappush(self._events, (when, next(self._ticks), rank, about))

    def check_the_hull(self, rank: int) -> None:
        """The model is a mixture of those of the beginning: it has not gone beyond them."""
        model = self.models[rank].latest.model
        assert float(model.min()) >= -1e-9, model
        assert float(model.sum()) == pytest.approx(1.0)


@given(st.integers(2, 6), st.lists(st.integers(1, 60), min_size=40, max_size=40), st.integers(1, 8))
def test_averages_of_all_and_exchanges_of_two_carry_no_model_beyond_the_others(
    world: int, times: list[int], steps: int
) -> None:
    """Who learns nothing takes mixtures of what there was; two pulls the same way, put together,
    would go as far out on the other side."""
    simulated = Simulated(world, times, steps)
    simulated.run(until=1500)
    assert all(each.means_applied > 1 for each in simulated.models)
    assert sum(each.latest.version for each in simulated.models) > sum(
        each.means_applied for each in simulated.models
    )


def test_the_mean_stands_for_what_exchanges_moved_meanwhile_and_what_was_learnt_stays() -> None:
    current = CurrentModel(torch.tensor([4.0]))
    read = current.latest
    contribution = current.contribute()
    current.move(torch.tensor([-2.0]))
    current.learn(read, read.model + 0.5)
    current.apply_mean(torch.tensor([1.0]) - contribution)
    assert current.latest.model.item() == 1.5
    current.move(torch.tensor([0.25]))
    current.contribute()
    current.apply_mean(torch.tensor([0.0]))
    assert current.latest.model.item() == 1.75, "what was moved before is in what was brought"
    current.contribute()
    current.move(torch.tensor([0.25]))
    current.withdraw_contribution()
    assert current.latest.model.item() == 2.0, "an average that came to nothing stands for nothing"


def test_an_answer_to_what_was_offered_before_a_mean_moves_nothing() -> None:
    current = CurrentModel(torch.tensor([4.0]))
    active = PairExchangeRule(0, range(2), "complete", NEVER, current, random.Random(0))
    offered = active.offer(0)
    assert offered is not None
    current.apply_mean(torch.tensor([-3.0]) + 0 * current.contribute())
    assert not active.on_reply(offered.number, torch.tensor([0.0]))
    assert current.latest.model.item() == 1.0
    again = active.offer(1)
    assert again is not None, "and it is over"
    assert active.on_reply(again.number, torch.tensor([0.0]))
    assert current.latest.model.item() == 0.5
