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
from typing import TYPE_CHECKING

from laggard.workloads.strategies.base.session_numbers import (
    pack_session_number,
    unpack_number,
    unpack_session,
)
from laggard.workloads.strategies.peer.group_rule import AveragingGroup, GroupRule
from laggard.workloads.strategies.peer.ring_average import Chunk, RingAverage
from laggard.workloads.tracing.step_result import NOBODY
from laggard.workloads.transport.frames import Message

if TYPE_CHECKING:
    import torch


READY, GROUP, CHUNK, DECLINED, WITHDRAWN = 2, 3, 4, 5, 6
"""Kinds of messages. All but chunks tell the session of their sender: groups in their number, the
others as their version."""


@dataclass(frozen=True)
class GroupAverageResult:
    """Result of a request for a group.

    Attributes:
        model: the group's mean, or this rank's own where the group was lost.
        waited_for: whose coming, or loss, made the group possible; -1 where that was this rank.
        grouped_ns: when this rank was told of its group.
        payload_bytes: that it sent.
    """

    model: torch.Tensor
    waited_for: int
    grouped_ns: int
    payload_bytes: int


@dataclass(frozen=True)
class _ActiveGroup:
    key: tuple[int, int]
    group: AveragingGroup
    ring: RingAverage
    grouped_ns: int


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
        self._formed = pack_session_number(sessions[rank])
        self.outbox: deque[tuple[int, Message]] = deque()
        self._model: torch.Tensor | None = None
        self._requested_generator = NOBODY
        self._active_group: _ActiveGroup | None = None
        self._outcome: GroupAverageResult | None = None
        self._early_chunks: dict[tuple[int, int], list[Message]] = {}
        self._rule: GroupRule | None = None
        self._early_requests: list[int] = []
        self._become_generator_if_first()

    def request_group(self, model: torch.Tensor, now_ns: int) -> None:
        """This rank is ready to average a model, which nobody changes."""
        self._model = model
        self._send_request(now_ns)

    def take_outcome(self) -> GroupAverageResult | None:
        """Return the result of the request, once it is known."""
        outcome, self._outcome = self._outcome, None
        return outcome

    def receive(self, message: Message, now_ns: int) -> None:
        """A message has come."""
        sender, session = message.sender, self._sessions.get(message.sender, NOBODY)
        if message.kind == CHUNK:
            self._on_chunk(message)
        elif message.kind == GROUP and unpack_session(message.version) == session:
            self._on_group(message, now_ns)
        elif message.kind == READY and message.version == session:
            self._on_ready(sender, now_ns)
        elif message.kind == WITHDRAWN and message.version == session:
            self._on_withdrawn(sender)
        elif (
            message.kind == DECLINED
            and message.version == session
            and sender == self._requested_generator
        ):
            self._send_request(now_ns)

    def add_member(self, rank: int, session: int, now_ns: int) -> None:
        """A rank is there, after all or again; of the loss of its last life, if it had one, this
        rank may not have heard.
        """
        self.remove_member(rank, now_ns)
        self._sessions[rank] = session
        if self._rule is not None and rank > self._rank:
            self._rule.add_member(rank)
        elif self._rule is not None:
            self._resign_as_generator(self._rule, now_ns)
        if self._active_group is None and self._requested_generator > rank:
            self.outbox.append((self._requested_generator, Message(WITHDRAWN, self._session)))

    def remove_member(self, rank: int, now_ns: int) -> None:
        """A rank is gone, and all that it had sent has been heard."""
        if self._sessions.pop(rank, None) is None:
            return
        self._early_requests = [each for each in self._early_requests if each != rank]
        active_group = self._active_group
        if active_group is not None and (
            rank in active_group.group.members or rank == active_group.key[0]
        ):
            assert self._model is not None
            self._conclude(self._model)
        if self._rule is not None:
            self._send_groups(self._rule.remove_member(rank), now_ns)
        self._become_generator_if_first()
        requests, self._early_requests = self._early_requests, []
        for each in requests:
            self._on_ready(each, now_ns)
        if rank == self._requested_generator and self._model is not None:
            self._send_request(now_ns)

    @property
    def _generator(self) -> int:
        return min(self._sessions)

    @property
    def _session(self) -> int:
        return self._sessions[self._rank]

    def _become_generator_if_first(self) -> None:
        if self._generator == self._rank and self._rule is None:
            groups_per_round = -(-len(self._sessions) // self._size)
            self._rule = GroupRule(
                self._sessions.keys(), self._size, self._rounds * groups_per_round, self._formed
            )

    def _resign_as_generator(self, rule: GroupRule, now_ns: int) -> None:
        self._rule, self._formed = None, rule.formed
        for rank in rule.waiting:
            if rank == self._rank:
                self._send_request(now_ns)
            else:
                self._decline(rank)

    def _decline(self, rank: int) -> None:
        self.outbox.append((rank, Message(DECLINED, self._session)))

    def _send_request(self, now_ns: int) -> None:
        self._requested_generator = self._generator
        if self._rule is not None:
            self._on_ready(self._rank, now_ns)
        else:
            self.outbox.append((self._requested_generator, Message(READY, self._session)))

    def _on_ready(self, rank: int, now_ns: int) -> None:
        """Who asks before this rank knows that it is the generator now is heard when it does."""
        if self._rule is None:
            self._early_requests.append(rank)
        else:
            self._send_groups(self._rule.ready(rank), now_ns)

    def _on_withdrawn(self, rank: int) -> None:
        """Who is in a group by now is told of it, and nothing else."""
        was_waiting = (
            rank in self._early_requests if self._rule is None else self._rule.withdraw(rank)
        )
        self._early_requests = [each for each in self._early_requests if each != rank]
        if was_waiting:
            self._decline(rank)

    def _send_groups(self, groups: tuple[AveragingGroup, ...], now_ns: int) -> None:
        for group in groups:
            for rank in group.members:
                if rank != self._rank:
                    members = (
                        pack_session_number(self._sessions[each], each) for each in group.members
                    )
                    self.outbox.append((rank, Message(GROUP, group.number, (group.last, *members))))
            if self._rank in group.members:
                self._join_group(self._rank, group, now_ns)

    def _on_group(self, message: Message, now_ns: int) -> None:
        last, *packed_members = message.values
        members = {unpack_number(each): unpack_session(each) for each in packed_members}
        all_present = all(self._sessions.get(each) == session for each, session in members.items())
        self._join_group(
            message.sender,
            AveragingGroup(message.version, tuple(members), last),
            now_ns,
            all_present=all_present,
        )

    def _join_group(
        self, generator: int, group: AveragingGroup, now_ns: int, *, all_present: bool = True
    ) -> None:
        if (
            self._model is None
            or self._active_group is not None
            or generator != self._requested_generator
        ):
            return
        key, ring = (generator, group.number), RingAverage(group.members, self._rank, self._model)
        self._active_group = _ActiveGroup(key, group, ring, now_ns)
        early = self._early_chunks.pop(key, [])
        self._early_chunks = {
            other: early_chunks
            for other, early_chunks in self._early_chunks.items()
            if other[0] == generator and other > key
        }
        if not all_present:
            self._conclude(self._model)
            return
        self._send(ring.begin())
        for message in early:
            self._on_chunk(message)
        self._finish()

    def _on_chunk(self, message: Message) -> None:
        assert message.tensor is not None
        key = (message.values[0], message.version)
        if self._active_group is None or self._active_group.key != key:
            self._early_chunks.setdefault(key, []).append(message)
            return
        self._send(self._active_group.ring.receive(message.tensor))
        self._finish()

    def _send(self, chunk: Chunk | None) -> None:
        if chunk is not None and self._active_group is not None:
            generator, number = self._active_group.key
            self.outbox.append(
                (
                    self._active_group.ring.next,
                    Message(CHUNK, number, (generator, chunk.turn), chunk.part),
                )
            )

    def _finish(self) -> None:
        if self._active_group is not None and self._active_group.ring.complete:
            self._conclude(self._active_group.ring.mean)

    def _conclude(self, model: torch.Tensor) -> None:
        active_group = self._active_group
        assert active_group is not None
        waited_for = NOBODY if active_group.group.last == self._rank else active_group.group.last
        self._outcome = GroupAverageResult(
            model, waited_for, active_group.grouped_ns, active_group.ring.payload_bytes
        )
        self._active_group, self._model, self._requested_generator = None, None, NOBODY
