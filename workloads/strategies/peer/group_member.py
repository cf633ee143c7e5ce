"""One rank's part in averaging models in groups; pure.

The rank requests a group from the group generator and averages with the members of that group. The
generator is the lowest present rank; this module is its part, too. It forms groups by `GroupRule`.

If a member of a group or the generator is lost, the other members leave the group with the models
that they came with. Ranks that wait for a group send their request to the next generator. A member
that had already received all chunks keeps the mean; a partial mean is never applied. A group is
identified by its generator and number, so messages of an abandoned group are ignored.

Ranks may join, and not all ranks learn of it at once. A request ends in one of three ways: a
group, the loss of the generator, or its refusal (DECLINED). Nothing else may end it, because other
ranks might already be in a group with the requester. So a rank that learns of a lower rank than
its generator withdraws its request (WITHDRAWN) and waits for the refusal before it asks the new
generator. A rank that stops being the generator declines all open requests. It keeps later
requests of ranks that have not learned of the new generator yet, until they are withdrawn or it
becomes the generator again. A joining rank requests nothing before all others know it, so every
member of its group knows it. Each process of a rank has a session number; messages of another
session than the current one are ignored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from laggard.core.rules.partial_reduce import AveragingGroup, GroupRule, create_group_rule
from laggard.core.span_schema import NOBODY
from laggard.workloads.strategies.base.session_numbers import (
    pack_session_number,
    unpack_number,
    unpack_session,
)
from laggard.workloads.strategies.peer.ring_average import Chunk, RingAverage
from laggard.workloads.transport.frames import Message

if TYPE_CHECKING:
    import torch


READY, GROUP, CHUNK, DECLINED, WITHDRAWN = 2, 3, 4, 5, 6
"""Kinds of messages. All but CHUNK carry the session of their sender: GROUP in its number, the
others as their version.
"""


@dataclass(frozen=True)
class GroupAverageResult:
    """Result of a request for a group.

    Attributes:
        model: mean of the group, or this rank's own model if the group was lost.
        waited_for: rank whose request or loss made the group possible; -1 if it was this rank.
        grouped_ns: time at which this rank learned of its group.
        payload_bytes: bytes that this rank sent.
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
    """State machine that receives requests, messages and losses, and queues messages to send.

    Args:
        rank: number of this rank.
        sessions: session of every present rank, including this one.
        size: members of a group.
        rounds: average number of groups per rank after which ranks whose models have not mixed
            must be grouped.

    Attributes:
        outbox: receivers and messages to send, in order.
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
        """Request a group to average this model, which must not change later."""
        self._model = model
        self._send_request(now_ns)

    def take_outcome(self) -> GroupAverageResult | None:
        """Return the result of the request, once it is known."""
        outcome, self._outcome = self._outcome, None
        return outcome

    def receive(self, message: Message, now_ns: int) -> None:
        """Handle a message of another rank."""
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
        """Add a rank, or replace its previous session by a new one.

        This rank may not have learned of the end of the previous session.
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
        """Remove a rank that is gone, after all its messages have been handled."""
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
            self._rule = create_group_rule(
                self._sessions.keys(), self._size, self._rounds, self._formed
            )

    def _resign_as_generator(self, rule: GroupRule, now_ns: int) -> None:
        # Its group numbers must continue to ascend if it becomes the generator again.
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
        """Handle the request of a rank for a group.

        A request may arrive before this rank knows that it is the generator; it is kept until
        then.
        """
        if self._rule is None:
            self._early_requests.append(rank)
        else:
            self._send_groups(self._rule.ready(rank), now_ns)

    def _on_withdrawn(self, rank: int) -> None:
        """Decline a withdrawn request, unless its rank is already in a group.

        Such a rank has been sent its group and needs no other answer.
        """
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
        # Groups of one generator have ascending numbers: earlier ones will never be joined.
        self._early_chunks = {
            other: early_chunks
            for other, early_chunks in self._early_chunks.items()
            if other[0] == generator and other > key
        }
        # A member that this rank knows as gone, or in another session, will never send its chunks.
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
