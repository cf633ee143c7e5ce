"""One rank's part in averaging models in groups: it asks for a group, and averages with its
members; pure.

The group generator is the lowest rank that is there, whose part this is too: it follows
`GroupRule`. If a member of a group is lost, or the generator, those who are still in the group
leave it with the models that they came with, and whoever waited for a group asks the next
generator. A member that had all chunks by then has the mean: no part of a mean is ever applied.
Groups are known by generator and number, so that what comes of a group that was left is not heard.

Ranks may join, and not all hear of it at once. A request ends with a group, with the loss of who
was asked, or when that one declines it; nothing else ends it, since others might be in a group with
who made it. So who hears of a lower rank than the one it has asked withdraws its request, and asks
anew when that is declined, if it is not too late. Who was the generator until a lower rank came
declines what it has been asked, and keeps what it is asked after that by those who have not heard:
until they withdraw it, or the lower rank is gone again. Ranks that come ask for nothing before all
others know them, so that whoever is in a group with one does. Every life of a rank has a session:
what is said in another than the present one is not heard.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from laggard.workloads.learnt import NOBODY
from laggard.workloads.strategies.grouping import Group, GroupRule
from laggard.workloads.strategies.ring_average import Chunk, RingAverage
from laggard.workloads.strategies.sessions import in_session, session_of, without_session
from laggard.workloads.transport.frames import Message

READY, GROUP, CHUNK, DECLINED, WITHDRAWN = 2, 3, 4, 5, 6
"""Kinds of messages. All but chunks tell the session of their sender: groups in their number, the
others as their version."""


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
        sessions: of all ranks that are there, by rank; this one too.
        size: members of a group.
        rounds: groups of each rank, on average, after which those must be joined whose models have
            not mixed.

    Attributes:
        outbox: what to send, in order: to whom, and what.
    """

    def __init__(self, rank: int, sessions: Mapping[int, int], size: int, rounds: int) -> None:
        self._rank, self._sessions, self._size, self._rounds = rank, dict(sessions), size, rounds
        self._formed = in_session(sessions[rank])
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
        sender, session = message.sender, self._sessions.get(message.sender, NOBODY)
        if message.kind == CHUNK:
            self._hear_chunk(message)
        elif message.kind == GROUP and session_of(message.version) == session:
            self._hear_group(message, now_ns)
        elif message.kind == READY and message.version == session:
            self._hear_ready(sender, now_ns)
        elif message.kind == WITHDRAWN and message.version == session:
            self._hear_withdrawn(sender)
        elif message.kind == DECLINED and message.version == session and sender == self._asked_of:
            self._ask(now_ns)

    def admit(self, rank: int, session: int, now_ns: int) -> None:
        """A rank is there, after all or again; of the loss of its last life, if it had one, this
        rank may not have heard.
        """
        self.leave(rank, now_ns)
        self._sessions[rank] = session
        if self._rule is not None and rank > self._rank:
            self._rule.admit(rank)
        elif self._rule is not None:
            self._give_up_office(self._rule, now_ns)
        if self._joined is None and self._asked_of > rank:
            self.outbox.append((self._asked_of, Message(WITHDRAWN, self._session)))

    def leave(self, rank: int, now_ns: int) -> None:
        """A rank is gone, and all that it had sent has been heard."""
        if self._sessions.pop(rank, None) is None:
            return
        self._asked_early = [each for each in self._asked_early if each != rank]
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
        return min(self._sessions)

    @property
    def _session(self) -> int:
        return self._sessions[self._rank]

    def _lead(self) -> None:
        if self._generator == self._rank and self._rule is None:
            a_round = -(-len(self._sessions) // self._size)
            self._rule = GroupRule(
                self._sessions.keys(), self._size, self._rounds * a_round, self._formed
            )

    def _give_up_office(self, rule: GroupRule, now_ns: int) -> None:
        self._rule, self._formed = None, rule.formed
        for rank in rule.line:
            if rank == self._rank:
                self._ask(now_ns)
            else:
                self._decline(rank)

    def _decline(self, rank: int) -> None:
        self.outbox.append((rank, Message(DECLINED, self._session)))

    def _ask(self, now_ns: int) -> None:
        self._asked_of = self._generator
        if self._rule is not None:
            self._hear_ready(self._rank, now_ns)
        else:
            self.outbox.append((self._asked_of, Message(READY, self._session)))

    def _hear_ready(self, rank: int, now_ns: int) -> None:
        """Who asks before this rank knows that it is the generator now is heard when it does."""
        if self._rule is None:
            self._asked_early.append(rank)
        else:
            self._tell(self._rule.ready(rank), now_ns)

    def _hear_withdrawn(self, rank: int) -> None:
        """Who is in a group by now is told of it, and nothing else."""
        waited = rank in self._asked_early if self._rule is None else self._rule.withdraw(rank)
        self._asked_early = [each for each in self._asked_early if each != rank]
        if waited:
            self._decline(rank)

    def _tell(self, groups: tuple[Group, ...], now_ns: int) -> None:
        for group in groups:
            for rank in group.members:
                if rank != self._rank:
                    members = (in_session(self._sessions[each], each) for each in group.members)
                    self.outbox.append((rank, Message(GROUP, group.number, (group.last, *members))))
            if self._rank in group.members:
                self._join(self._rank, group, now_ns)

    def _hear_group(self, message: Message, now_ns: int) -> None:
        last, *told = message.values
        members = {without_session(each): session_of(each) for each in told}
        all_there = all(self._sessions.get(each) == session for each, session in members.items())
        self._join(
            message.sender,
            Group(message.version, tuple(members), last),
            now_ns,
            all_there=all_there,
        )

    def _join(self, generator: int, group: Group, now_ns: int, *, all_there: bool = True) -> None:
        if self._model is None or self._joined is not None or generator != self._asked_of:
            return
        key, ring = (generator, group.number), RingAverage(group.members, self._rank, self._model)
        self._joined = _Joined(key, group, ring, now_ns)
        early = self._early.pop(key, [])
        self._early = {
            other: held
            for other, held in self._early.items()
            if other[0] == generator and other > key
        }
        if not all_there:
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
            self.outbox.append(
                (
                    self._joined.ring.next,
                    Message(CHUNK, number, (generator, chunk.turn), chunk.part),
                )
            )

    def _finish(self) -> None:
        if self._joined is not None and self._joined.ring.complete:
            self._conclude(self._joined.ring.mean)

    def _conclude(self, model: torch.Tensor) -> None:
        joined = self._joined
        assert joined is not None
        waited_for = NOBODY if joined.group.last == self._rank else joined.group.last
        self._outcome = Outcome(model, waited_for, joined.told_ns, joined.ring.payload_bytes)
        self._joined, self._model, self._asked_of = None, None, NOBODY
