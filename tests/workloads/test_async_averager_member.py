"""One member of the averages, message by message, without the others."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.span_schema import NOBODY
from laggard.workloads.strategies.background.async_averager import (
    BEGIN,
    READY,
    AsyncAverager,
    AverageResult,
    AveragingMode,
    AveragingPolicy,
    Contribution,
    FirstPolicyChooser,
    PreAverageTiming,
    begin_immediately,
    pack_ranks,
    unpack_ranks,
)
from laggard.workloads.transport.frames import Message, pack, unpack


@dataclass
class Lone:
    """One rank, told by hand what others say."""

    rank: int
    agreed: AveragingPolicy
    ready_part: float = 0.5
    contribution: int = 0
    outcomes: list[AverageResult] = field(default_factory=list)
    first_policy_chooser: FirstPolicyChooser = begin_immediately
    member: AsyncAverager = field(init=False)

    def __post_init__(self) -> None:
        self.member = AsyncAverager(
            self.rank,
            range(3),
            self.agreed,
            self.ready_part,
            self._contribute,
            self.outcomes.append,
            first_policy_chooser=self.first_policy_chooser,
        )

    def _contribute(self) -> Contribution:
        self.contribution += 1
        return Contribution(torch.ones(3), 1)

    def begin(self, number: int, policy: AveragingPolicy) -> None:
        """Hear that rank 0 begins an average of all three."""
        told = (policy.steps, int(policy.waits), *pack_ranks(range(3)))
        self.member.receive(Message(BEGIN, number, told, sender=0))

    def sent(self, kind: int) -> list[tuple[int, Message]]:
        posted = [(to, message) for to, message in self.member.outbox if message.kind == kind]
        self.member.outbox.clear()
        return posted


def test_who_heard_of_a_loss_before_the_average_is_ready_for_the_next() -> None:
    """It had told the leader, who began one with the rank that is lost: if it did not tell again
    both would wait for ever."""
    waiting = Lone(1, AveragingPolicy(2, AveragingMode.BLOCKING))
    waiting.member.record_steps(2, 7)
    assert waiting.sent(READY) == [(0, Message(READY, NOBODY, (7, 0)))]
    waiting.member.remove_member(2)
    assert waiting.member.waits
    waiting.begin(1, AveragingPolicy(3, AveragingMode.BLOCKING))
    assert (waiting.contribution, waiting.member.waits, waiting.member.policy.steps) == (
        0,
        False,
        3,
    )
    waiting.member.record_steps(3, 7)
    assert waiting.sent(READY) == [(0, Message(READY, 1, (7, 0)))]


def test_an_average_that_comes_to_nothing_before_its_turn_counts_as_begun() -> None:
    """Rank 0 had begun a second one when rank 2 was lost, here still in the first one: terms of the
    second hold."""
    late = Lone(1, AveragingPolicy(2))
    late.begin(1, AveragingPolicy(2))
    late.begin(2, AveragingPolicy(4))
    late.member.record_steps(2, 7)
    late.member.remove_member(2)
    assert (late.contribution, late.member.policy) == (1, AveragingPolicy(4))
    late.member.outbox.clear()
    late.member.record_steps(4, 7)
    assert late.sent(READY) == [(0, Message(READY, 2, (7, 0)))]


def test_the_leader_does_not_count_who_was_ready_before_the_average_began() -> None:
    leader = Lone(0, AveragingPolicy(1))
    leader.member.record_steps(1, 7)
    leader.member.receive(Message(READY, NOBODY, (7, 0), sender=1))
    assert len(leader.sent(BEGIN)) == 2
    leader.member.receive(Message(READY, NOBODY, (7, 0), sender=2))
    leader.member.remove_member(2)
    leader.member.receive(Message(READY, NOBODY, (7, 0), sender=1))
    assert leader.sent(BEGIN) == []
    leader.member.receive(Message(READY, 1, (7, 0), sender=1))
    assert [to for to, _ in leader.sent(BEGIN)] == [1]


def test_no_average_begins_as_long_as_the_leader_holds_it_back() -> None:
    """It is asked with every step and word, what everybody's exchange took among them, and nobody
    is forgotten meanwhile; it says on what terms, too."""
    asked: list[PreAverageTiming] = []

    def first_policy_chooser(
        untimed: PreAverageTiming, policy: AveragingPolicy
    ) -> AveragingPolicy | None:
        assert policy == AveragingPolicy(1, AveragingMode.PAIRWISE)
        asked.append(untimed)
        return None if untimed.taken < 4 else AveragingPolicy(40, AveragingMode.PAIRWISE)

    leader = Lone(
        0, AveragingPolicy(1, AveragingMode.PAIRWISE), first_policy_chooser=first_policy_chooser
    )
    leader.member.receive(Message(READY, NOBODY, (9, 0), sender=1))
    leader.member.receive(Message(READY, NOBODY, (8, 31), sender=2))
    for _ in range(3):
        leader.member.record_steps(1, 7, 30)
        assert leader.sent(BEGIN) == []
    assert asked[-1] == PreAverageTiming({0: 7, 1: 9, 2: 8}, {0: 30, 2: 31}, 3)
    leader.member.record_steps(1, 7, 30)
    assert [(to, begun.values[:2]) for to, begun in leader.sent(BEGIN)] == [
        (to, (40, AveragingMode.PAIRWISE)) for to in (1, 2)
    ]
    assert leader.contribution == 1
    assert leader.member.policy == AveragingPolicy(40, AveragingMode.PAIRWISE)


def test_who_awaits_an_exchange_is_not_ready() -> None:
    """It says so with the first step after it, and what it took."""
    waiting = Lone(1, AveragingPolicy(1, AveragingMode.PAIRWISE))
    waiting.member.record_steps(2, 7, None)
    assert waiting.sent(READY) == []
    waiting.member.record_steps(1, 7, 40)
    assert waiting.sent(READY) == [(0, Message(READY, NOBODY, (7, 40)))]


@pytest.mark.parametrize("rank", [0, 1])
def test_who_is_alone_neither_waits_nor_averages(rank: int) -> None:
    def contribute() -> Contribution:
        raise AssertionError

    alone = AsyncAverager(
        rank,
        {rank},
        AveragingPolicy(1, AveragingMode.BLOCKING),
        1.0,
        contribute,
        lambda _outcome: None,
    )
    alone.record_steps(3, 1)
    assert not alone.waits
    assert not alone.outbox


@given(st.sets(st.integers(0, 800), min_size=1))
def test_members_are_told_in_numbers_that_a_message_can_hold(members: Collection[int]) -> None:
    told = (2**31, 1, *pack_ranks(members))
    header = pack(Message(BEGIN, 1, told), 0)[0]
    assert isinstance(header, bytes)
    assert unpack(header, None, 0).values == told
    assert unpack_ranks(told[2:]) == tuple(sorted(members))
