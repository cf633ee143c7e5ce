"""One rank's part in averaging models in groups: it asks for a group, and averages with its members; pure.

The group generator is the lowest rank that is there, whose part this is too: it follows `GroupRule`. If a member of a group is lost, or the generator, those
who are still in the group leave it with the models that they came with, and whoever waited for a group asks the next generator. A member that had all
chunks by then has the mean: no part of a mean is ever applied. Groups are known by generator and number, so that what comes of a group that was left is not heard.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch

from laggard.workloads.learnt import NOBODY
from laggard.workloads.strategies.grouping import Group, GroupRule
from laggard.workloads.strategies.ring_average import Chunk, RingAverage
from laggard.workloads.transport.frames import Message

READY, GROUP, CHUNK = 2, 3, 4


@dataclass(frozen=True)
class Outcome:
    """What became of a request.

    Attributes:
        model: the group's mean, or this rank's own where the group was lost.
        waited_for: whose coming, or loss, made the group possible; -1 where that was this rank.
        told_ns: when this rank was told of its group.
        payload_bytes: that it sent.
    """

    model: torch.Tensor
    waited_for: int
    told_ns: int
    payload_bytes: int


@dataclass(frozen=True)
class _Joined:
    key: tuple[int, int]
    group: Group
    ring: RingAverage
    told_ns: int


class GroupMember:
    """A state machine: told of requests, messages and losses, it says what to send.

    Args:
        rank: whose.
        world_size: number of ranks.
        size: members of a group.
        rounds: groups of each rank, on average, after which those must be joined whose models have not mixed.

    Attributes:
        outbox: what to send, in order: to whom, and what.
    """

    def __init__(self, rank: int, world_size: int, size: int, rounds: int) -> None:
        self._rank, self._there, self._size, self._rounds = rank, set(range(world_size)), size, rounds
        self.outbox: deque[tuple[int, Message]] = deque()
        self._model: torch.Tensor | None = None
        self._asked_of = NOBODY
        self._joined: _Joined | None = None
        self._outcome: Outcome | None = None
        self._early: dict[tuple[int, int], list[Message]] = {}
        self._rule: GroupRule | None = None
        self._asked_early: list[int] = []
        self._lead()

    def ask(self, model: torch.Tensor, now_ns: int) -> None:
        """This rank is ready to average a model, which nobody changes."""
        self._model = model
        self._ask(now_ns)

    def take_outcome(self) -> Outcome | None:
        """What became of the request, once that is known."""
        outcome, self._outcome = self._outcome, None
        return outcome

    def hear(self, message: Message, now_ns: int) -> None:
        """A message has come."""
        if message.kind == READY:
            self._hear_ready(message.sender, now_ns)
        elif message.kind == GROUP:
            group = Group(message.version, message.values[1:], message.values[0])
            self._join(message.sender, group, now_ns)
        elif message.kind == CHUNK:
            self._hear_chunk(message)

    def leave(self, rank: int, now_ns: int) -> None:
        """A rank is gone, and all that it had sent has been heard."""
        if rank not in self._there:
            return
        self._there.discard(rank)
        joined = self._joined
        if joined is not None and (rank in joined.group.members or rank == joined.key[0]):
            assert self._model is not None
            self._conclude(self._model)
        if self._rule is not None:
            self._tell(self._rule.leave(rank), now_ns)
        self._lead()
        asked, self._asked_early = self._asked_early, []
        for each in asked:
            self._hear_ready(each, now_ns)
        if rank == self._asked_of and self._model is not None:
            self._ask(now_ns)

    @property
    def _generator(self) -> int:
        return min(self._there)

    def _lead(self) -> None:
        if self._generator == self._rank and self._rule is None:
            a_round = -(-len(self._there) // self._size)
            self._rule = GroupRule(self._there, self._size, self._rounds * a_round)

    def _ask(self, now_ns: int) -> None:
        self._asked_of = self._generator
        if self._rule is not None:
            self._hear_ready(self._rank, now_ns)
        else:
            self.outbox.append((self._asked_of, Message(READY)))

    def _hear_ready(self, rank: int, now_ns: int) -> None:
        """Who asks before this rank knows that it is the generator now is heard when it does."""
        if self._rule is None:
            self._asked_early.append(rank)
        else:
            self._tell(self._rule.ready(rank), now_ns)

    def _tell(self, groups: tuple[Group, ...], now_ns: int) -> None:
        for group in groups:
            for rank in group.members:
                if rank != self._rank:
                    self.outbox.append((rank, Message(GROUP, group.number, (group.last, *group.members))))
            if self._rank in group.members:
                self._join(self._rank, group, now_ns)

    def _join(self, generator: int, group: Group, now_ns: int) -> None:
        if self._model is None or self._joined is not None or generator != self._asked_of:
            return
        key, ring = (generator, group.number), RingAverage(group.members, self._rank, self._model)
        self._joined = _Joined(key, group, ring, now_ns)
        early = self._early.pop(key, [])
        self._early = {other: held for other, held in self._early.items() if other[0] == generator and other > key}
        if not self._there.issuperset(group.members):
            self._conclude(self._model)
            return
        self._send(ring.begin())
        for message in early:
            self._hear_chunk(message)
        self._finish()

    def _hear_chunk(self, message: Message) -> None:
        assert message.tensor is not None
        key = (message.values[0], message.version)
        if self._joined is None or self._joined.key != key:
            self._early.setdefault(key, []).append(message)
            return
        self._send(self._joined.ring.hear(message.tensor))
        self._finish()

    def _send(self, chunk: Chunk | None) -> None:
        if chunk is not None and self._joined is not None:
            generator, number = self._joined.key
            self.outbox.append((self._joined.ring.next, Message(CHUNK, number, (generator, chunk.turn), chunk.part)))

    def _finish(self) -> None:
        if self._joined is not None and self._joined.ring.complete:
            self._conclude(self._joined.ring.mean)

    def _conclude(self, model: torch.Tensor) -> None:
        joined = self._joined
        assert joined is not None
        waited_for = NOBODY if joined.group.last == self._rank else joined.group.last
        self._outcome = Outcome(model, waited_for, joined.told_ns, joined.ring.payload_bytes)
        self._joined, self._model, self._asked_of = None, None, NOBODY
