"""One rank's part in averages of all ranks' models that nobody waits for; pure.

Every rank tells the lowest one that is there, the leader, when it has taken enough steps since the
last average. When enough ranks have, the leader has all begin one: each brings its model as it is
at that moment, weighted by the samples that it has trained on since the last, and goes on training
meanwhile. When the mean has come round, the rank's model moves by the mean less what it brought:
what was learned meanwhile stays in it.

Who has learned nothing new counts nothing, and is told the mean like all others. Where the terms
say so ranks wait, all the same, so that all learn alike. The leader may change the terms with every
average. If a member is lost, or the leader, the average is given up by all who do not have it yet,
and what they have learned counts in the next.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from laggard.workloads.strategies.background.butterfly_average import ButterflyAverage, VectorPart
from laggard.workloads.tracing.step_result import NOBODY
from laggard.workloads.transport.frames import Message

if TYPE_CHECKING:
    import torch


READY, BEGIN, PART = 2, 3, 4
MIN_PART_BYTES = 1 << 18
"""Of a model that one rank averages for all, at least: what a message costs by itself should not
count beside it."""

WORD_BITS = 62
"""Ranks told of in one number of a message."""


@dataclass(frozen=True)
class Contribution:
    """A rank's model as it goes into an average, and the samples that it counts by."""

    model: torch.Tensor
    samples: int


class AveragingMode(IntEnum):
    """Mode in which ranks average their models."""

    NONBLOCKING = 0
    """All are averaged, and nobody waits for it."""

    BLOCKING = 1
    """All are averaged, and all wait until that is over."""

    PAIRWISE = 2
    """Two by two whenever there is time (see pair_exchange.py), and now and then all; nobody
    waits."""


@dataclass(frozen=True)
class AveragingPolicy:
    """Policy of when and how ranks average.

    Attributes:
        steps: since the last average of all after which a rank is ready for the next.
        mode: what is done meanwhile.
    """

    steps: int
    mode: AveragingMode = AveragingMode.NONBLOCKING

    @property
    def waits(self) -> bool:
        """Whether a rank that is ready waits until the average is over; else it goes on."""
        return self.mode is AveragingMode.BLOCKING

    @property
    def measures_only(self) -> bool:
        """Whether averages of all are made for no more than to know what they take.

        They come seldom where models go two by two, since they take many steps. Such a mean is of
        models of long ago: it would put back what exchanges have done since.
        """
        return self.mode is AveragingMode.PAIRWISE and self.steps > 1


@dataclass(frozen=True)
class AverageResult:
    """An average that is over for this rank: what its model is to move by, None where it was given
    up or only timed; and the samples that are to count again then.
    """

    delta: torch.Tensor | None
    samples: int


@dataclass(frozen=True)
class AverageTiming:
    """Durations that the leader knows when it begins an average, in real ns.

    Attributes:
        average_ns: what the last one took, from its beginning until the leader had the mean.
        step_ns: what a step takes, by rank, of those that have said so.
    """

    average_ns: int
    step_ns: Mapping[int, int]


@dataclass(frozen=True)
class PreAverageTiming:
    """Durations that the leader knows before any average has been timed, in real ns.

    Attributes:
        step_ns: what a step takes, by rank, of those that have said so.
        round_trip_ns: how long models of an exchange of two were on their way, there and back, by
            the rank that began it, of those that have said so.
        taken: steps that the leader has taken since the beginning, or since the last average.
    """

    step_ns: Mapping[int, int]
    round_trip_ns: Mapping[int, int]
    taken: int


PolicyChooser = Callable[[AverageTiming, AveragingPolicy], AveragingPolicy]
FirstPolicyChooser = Callable[[PreAverageTiming, AveragingPolicy], AveragingPolicy | None]


def keep_policy(_measured: AverageTiming, policy: AveragingPolicy) -> AveragingPolicy:
    """Terms that stay as they are."""
    return policy


def begin_immediately(_untimed: PreAverageTiming, policy: AveragingPolicy) -> AveragingPolicy:
    """The first average is not held back."""
    return policy


@dataclass(frozen=True)
class _AverageCall:
    leader: int
    number: int
    members: tuple[int, ...]
    policy: AveragingPolicy


@dataclass(frozen=True)
class _RunningAverage:
    call: _AverageCall
    contribution: Contribution
    average: ButterflyAverage
    since_ns: int


class AsyncAverager:
    """A state machine: told of steps, messages and losses, it says what to send.

    Args:
        rank: whose.
        present: all ranks.
        policy: to begin with.
        ready_part: part of the ranks that must be ready; where they wait, all must.
        contribute: the model as it is now, and what it counts.
        on_average_done: told what became of an average, once it is over and before the model is
            brought again.
        policy_chooser: what the terms are to be from now on, where this rank is the leader.
        first_policy_chooser: as long as no average has been timed: the terms on which one is to
            begin, None where none is yet.
        clock_ns: the time.
        last_number: number of the average before the first that this rank may lead.

    Attributes:
        policy: as they are now.
        outbox: what to send, in order: to whom, and what.
    """

    def __init__(
        self,
        rank: int,
        present: Collection[int],
        policy: AveragingPolicy,
        ready_part: float,
        contribute: Callable[[], Contribution],
        on_average_done: Callable[[AverageResult], None],
        policy_chooser: PolicyChooser = keep_policy,
        first_policy_chooser: FirstPolicyChooser = begin_immediately,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        last_number: int = 0,
    ) -> None:
        self._rank, self._present, self.policy = rank, set(present), policy
        self._ready_part, self._contribute, self._on_average_done = (
            ready_part,
            contribute,
            on_average_done,
        )
        self._policy_chooser, self._first_policy_chooser, self._clock_ns = (
            policy_chooser,
            first_policy_chooser,
            clock_ns,
        )
        self.outbox: deque[tuple[int, Message]] = deque()
        self._steps_taken = self._step_ns = 0
        self._round_trip_ns: int | None = 0
        self._round_trips_ns: dict[int, int] = {}
        self._average_ns: int | None = None
        self._steps_ns: dict[int, int] = {}
        self._reported_to = NOBODY
        self._ready: set[int] = set()
        self._departed: set[int] = set()
        self._last_number = last_number
        self._included: set[int] = set()
        self._last_followed: dict[int, int] = {}
        self._calls: deque[_AverageCall] = deque()
        self._running: _RunningAverage | None = None
        self._early_parts: dict[tuple[int, int], list[tuple[int, VectorPart]]] = {}

    def record_steps(self, steps: int, step_ns: int, round_trip_ns: int | None = 0) -> None:
        """This rank has finished some.

        Args:
            steps: how many.
            step_ns: what each took, in the mean.
            round_trip_ns: how long models of an exchange of two were on their way, there and back;
                None where it is to have one before it is ready for an average of all, 0 where it
                has none.
        """
        self._steps_taken, self._step_ns, self._round_trip_ns = (
            self._steps_taken + steps,
            step_ns,
            round_trip_ns,
        )
        self._record_timing(self._rank, step_ns, round_trip_ns or 0)
        self._report_ready()
        self._begin_average_if_ready()

    @property
    def waits(self) -> bool:
        """Whether this rank may not take another step now."""
        return (
            self.policy.waits
            and len(self._present) > 1
            and (self._running is not None or self._steps_taken >= self.policy.steps)
        )

    def receive(self, message: Message) -> None:
        """Another rank's."""
        if message.sender not in self._present:
            return
        if message.kind == READY:
            self._record_timing(message.sender, *message.values)
            # Else it was ready for an average that has begun since.
            is_first_report = message.version == NOBODY and message.sender not in self._included
            if message.version == self._last_number or is_first_report:
                self._ready.add(message.sender)
            self._begin_average_if_ready()
        elif message.kind == BEGIN:
            steps, mode, *words = message.values
            self._enqueue_call(
                _AverageCall(
                    message.sender,
                    message.version,
                    unpack_ranks(words),
                    AveragingPolicy(steps, AveragingMode(mode)),
                )
            )
        elif message.kind == PART:
            assert message.tensor is not None
            leader, is_mean, weight = message.values
            part = VectorPart(self._rank, bool(is_mean), weight, message.tensor)
            self._receive_part((leader, message.version), message.sender, part)

    def add_member(self, rank: int) -> None:
        """A rank is there, after all or again; it takes part from the next average on, and may be
        who leads them.
        """
        self._present.add(rank)
        self._departed.discard(rank)
        if rank == self._leader:
            self._reported_to = NOBODY
            self._ready.clear()
        self._report_ready()
        self._join_next_average()

    def remove_member(self, rank: int) -> None:
        """A rank is gone, and all that it had sent has been heard."""
        self._present.discard(rank)
        self._departed.add(rank)
        self._ready.discard(rank)
        self._included.discard(rank)
        self._steps_ns.pop(rank, None)
        self._round_trips_ns.pop(rank, None)
        self._last_followed.pop(rank, None)
        self._early_parts = {
            key: early_parts for key, early_parts in self._early_parts.items() if key[0] != rank
        }
        self._calls = deque(call for call in self._calls if call.leader in self._present)
        running = self._running
        if running is not None and not self._has_all_members(running.call):
            self._finish_average(AverageResult(None, running.contribution.samples))
        if rank == self._reported_to:
            self._reported_to = NOBODY
        self._report_ready()
        self._begin_average_if_ready()

    @property
    def _leader(self) -> int:
        return min(self._present)

    def _has_all_members(self, call: _AverageCall) -> bool:
        return call.leader in self._present and self._present.issuperset(call.members)

    def _report_ready(self) -> None:
        """Once for each average: that this rank is ready."""
        if (
            self._steps_taken < self.policy.steps
            or self._reported_to != NOBODY
            or self._running is not None
        ):
            return
        if self._round_trip_ns is None:
            return
        self._reported_to = self._leader
        if self._reported_to == self._rank:
            self._ready.add(self._rank)
            self._begin_average_if_ready()
        else:
            number = self._last_followed.get(self._reported_to, NOBODY)
            self.outbox.append(
                (self._reported_to, Message(READY, number, (self._step_ns, self._round_trip_ns)))
            )

    def _record_timing(self, rank: int, step_ns: int, round_trip_ns: int) -> None:
        self._steps_ns[rank] = step_ns
        if round_trip_ns:
            self._round_trips_ns[rank] = round_trip_ns

    def _begin_average_if_ready(self) -> None:
        """As the leader, begin an average if enough are ready, and the last is over here."""
        part = 1.0 if self.policy.waits else self._ready_part
        wanted = max(1, math.ceil(part * len(self._present)))
        if (
            self._leader != self._rank
            or self._running is not None
            or len(self._ready) < wanted
            or len(self._present) < 2
        ):
            return
        policy = self._choose_policy()
        if policy is None:
            return
        self._last_number, self._ready = self._last_number + 1, set()
        call = _AverageCall(self._rank, self._last_number, tuple(sorted(self._present)), policy)
        self._included.update(call.members)
        begin_values = (policy.steps, int(policy.mode), *pack_ranks(call.members))
        for rank in call.members:
            if rank != self._rank:
                self.outbox.append((rank, Message(BEGIN, call.number, begin_values)))
        self._enqueue_call(call)

    def _choose_policy(self) -> AveragingPolicy | None:
        if self._average_ns is not None:
            return self._policy_chooser(
                AverageTiming(self._average_ns, dict(self._steps_ns)), self.policy
            )
        return self._first_policy_chooser(
            PreAverageTiming(dict(self._steps_ns), dict(self._round_trips_ns), self._steps_taken),
            self.policy,
        )

    def _enqueue_call(self, call: _AverageCall) -> None:
        self._calls.append(call)
        self._join_next_average()

    def _join_next_average(self) -> None:
        """Take part in the next average, once the last is over, and all its members have made
        themselves known.

        Who has not by the time of the next one is lost: without this rank the leader cannot have
        ended that which it waits with.
        """
        while self._running is None and self._calls:
            unknown = set(self._calls[0].members) - self._present - self._departed
            if unknown and len(self._calls) == 1:
                return
            call = self._calls.popleft()
            key = (call.leader, call.number)
            early = self._early_parts.pop(key, [])
            self._early_parts = {
                other: early_parts
                for other, early_parts in self._early_parts.items()
                if other[0] != key[0] or other > key
            }
            # Also where a member is gone: the leader has forgotten who was ready.
            self._steps_taken, self._reported_to, self.policy = 0, NOBODY, call.policy
            self._last_followed[call.leader] = call.number
            if not self._has_all_members(call):
                continue
            contribution = self._contribute()
            owners = assign_owners(call.members, call.number, contribution.model)
            average = ButterflyAverage(
                call.members, self._rank, contribution.model, contribution.samples, owners
            )
            self._running = _RunningAverage(call, contribution, average, self._clock_ns())
            self._send(average.begin())
            for sender, part in early:
                self._receive_part(key, sender, part)

    def _receive_part(self, key: tuple[int, int], sender: int, part: VectorPart) -> None:
        running = self._running
        if running is None or (running.call.leader, running.call.number) != key:
            self._early_parts.setdefault(key, []).append((sender, part))
            return
        self._send(running.average.receive(sender, part))
        if running.average.complete:
            self._average_ns = self._clock_ns() - running.since_ns
            self._finish_average(self._build_result(running))

    def _build_result(self, running: _RunningAverage) -> AverageResult:
        if running.call.policy.measures_only:
            return AverageResult(None, running.contribution.samples)
        mean = running.average.mean
        return AverageResult(None if mean is None else mean - running.contribution.model, 0)

    def _send(self, parts: list[VectorPart]) -> None:
        assert self._running is not None
        call = self._running.call
        for part in parts:
            values = (call.leader, int(part.is_mean), part.weight)
            self.outbox.append((part.rank, Message(PART, call.number, values, part.values)))

    def _finish_average(self, outcome: AverageResult) -> None:
        self._running = None
        self._on_average_done(outcome)
        self._report_ready()
        self._join_next_average()
        self._begin_average_if_ready()


def assign_owners(members: tuple[int, ...], number: int, model: torch.Tensor) -> tuple[int, ...]:
    """Which members average a part each: as few as make it worth a message, and others in the next
    average.
    """
    count = min(max(model.numel() * model.element_size() // MIN_PART_BYTES, 1), len(members))
    return tuple(members[(number + place) % len(members)] for place in range(count))


def pack_ranks(members: Collection[int]) -> tuple[int, ...]:
    """Ranks as numbers of a message: a bit each."""
    words = [0] * (max(members) // WORD_BITS + 1)
    for rank in members:
        words[rank // WORD_BITS] |= 1 << rank % WORD_BITS
    return tuple(words)


def unpack_ranks(words: Collection[int]) -> tuple[int, ...]:
    """The ranks that the numbers of a message say, in ascending order."""
    return tuple(
        place * WORD_BITS + bit
        for place, word in enumerate(words)
        for bit in range(WORD_BITS)
        if word >> bit & 1
    )
