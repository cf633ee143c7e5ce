"""One rank's part in averages of all ranks' models that run during training; pure.

Each rank reports to the leader (the lowest present rank) when it has taken enough steps since the
last average. When enough ranks are ready, the leader begins an average. Each rank contributes its
current model, weighted by the samples that it has trained on since the last average, and continues
to train. When the mean is complete, the rank's model moves by the mean minus its contribution, so
the updates made meanwhile are kept.

A rank without new samples has weight zero but receives the mean. In the blocking mode ranks wait
for the average, so that all learn equally. The leader may change the policy with every average. If
a member or the leader is lost, all ranks that do not have the mean yet abandon the average, and
their samples count in the next one.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from laggard.core.span_schema import NOBODY
from laggard.workloads.strategies.background.butterfly_average import ButterflyAverage, VectorPart
from laggard.workloads.transport.frames import Message

if TYPE_CHECKING:
    import torch


READY, BEGIN, PART = 2, 3, 4
MIN_PART_BYTES = 1 << 18
"""Smallest part of a model that one rank averages for all, in bytes: for smaller parts the fixed
cost of a message would matter.
"""

WORD_BITS = 62
"""Number of ranks that one number of a message encodes, as bits of a signed 64-bit integer."""


@dataclass(frozen=True)
class Contribution:
    """Model of a rank that enters an average, and the samples that are its weight."""

    model: torch.Tensor
    samples: int


class AveragingMode(IntEnum):
    """Mode in which ranks average their models."""

    NONBLOCKING = 0
    """All models are averaged; no rank waits."""

    BLOCKING = 1
    """All models are averaged; all ranks wait until the average ends."""

    PAIRWISE = 2
    """Models are averaged in pairs as often as possible (see pair_exchange.py), and all models
    rarely; no rank waits.
    """


@dataclass(frozen=True)
class AveragingPolicy:
    """Policy of when and how ranks average.

    Attributes:
        steps: steps since the last average of all models after which a rank is ready for the next.
        mode: mode of averaging.
    """

    steps: int
    mode: AveragingMode = AveragingMode.NONBLOCKING

    @property
    def waits(self) -> bool:
        """True if a ready rank waits until the average ends, instead of training on."""
        return self.mode is AveragingMode.BLOCKING

    @property
    def measures_only(self) -> bool:
        """True if averages of all models only serve to measure their duration.

        In the pairwise mode such averages are rare, because each takes many steps. The mean is
        then of old models, and would undo the pairwise exchanges made since.
        """
        return self.mode is AveragingMode.PAIRWISE and self.steps > 1


@dataclass(frozen=True)
class AverageResult:
    """Result of an average for this rank.

    Attributes:
        delta: change to apply to its model; None if the average was abandoned or only measured.
        samples: samples that must count again in the next average.
    """

    delta: torch.Tensor | None
    samples: int


@dataclass(frozen=True)
class AverageTiming:
    """Durations that the leader knows when it begins an average, in real ns.

    Attributes:
        average_ns: duration of the last average, from its beginning until the leader had the mean.
        step_ns: duration of a step, by rank, for ranks that have reported one.
    """

    average_ns: int
    step_ns: Mapping[int, int]


@dataclass(frozen=True)
class PreAverageTiming:
    """Durations that the leader knows before any average has been timed, in real ns.

    Attributes:
        step_ns: duration of a step, by rank, for ranks that have reported one.
        round_trip_ns: time that the models of a pairwise exchange spent on the links, there and
            back, by the rank that began the exchange, for ranks that have reported one.
        taken: steps of the leader since the start, or since the last average.
    """

    step_ns: Mapping[int, int]
    round_trip_ns: Mapping[int, int]
    taken: int


PolicyChooser = Callable[[AverageTiming, AveragingPolicy], AveragingPolicy]
FirstPolicyChooser = Callable[[PreAverageTiming, AveragingPolicy], AveragingPolicy | None]


def keep_policy(_measured: AverageTiming, policy: AveragingPolicy) -> AveragingPolicy:
    """Return the present policy: the policy never changes."""
    return policy


def begin_immediately(_untimed: PreAverageTiming, policy: AveragingPolicy) -> AveragingPolicy:
    """Return the present policy: the first average begins as soon as ranks are ready."""
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
    """State machine that receives steps, messages and losses, and queues messages to send.

    Args:
        rank: number of this rank.
        present: all present ranks, including this one.
        policy: initial policy.
        ready_part: fraction of the ranks that must be ready; in the blocking mode all must.
        contribute: function that returns the current model and its samples.
        on_average_done: function that receives the result of an average, before the model is
            contributed again.
        policy_chooser: function that returns the next policy if this rank is the leader.
        first_policy_chooser: replaces `policy_chooser` until an average has been timed; returns
            the policy of the first average, or None while it must not begin.
        clock_ns: clock.
        last_number: number of the average before the first that this rank may lead.

    Attributes:
        policy: current policy.
        outbox: receivers and messages to send, in order.
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
        # Number of the last average per leader. READY repeats it, so that a leader can tell a
        # report for its next average from a late one.
        self._last_followed: dict[int, int] = {}
        self._calls: deque[_AverageCall] = deque()
        self._running: _RunningAverage | None = None
        self._early_parts: dict[tuple[int, int], list[tuple[int, VectorPart]]] = {}

    def record_steps(self, steps: int, step_ns: int, round_trip_ns: int | None = 0) -> None:
        """Record that this rank has finished steps.

        Args:
            steps: number of steps.
            step_ns: mean duration of one step.
            round_trip_ns: time that the models of a pairwise exchange spent on the links, there
                and back; 0 without a measurement. None means that the rank must measure one before
                it is ready for an average of all.
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
        """True while this rank must not take another step."""
        return (
            self.policy.waits
            and len(self._present) > 1
            and (self._running is not None or self._steps_taken >= self.policy.steps)
        )

    def receive(self, message: Message) -> None:
        """Handle a message of another rank."""
        if message.sender not in self._present:
            return
        if message.kind == READY:
            self._record_timing(message.sender, *message.values)
            # Any other version means that the rank was ready for an average that has begun since.
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
        """Add a rank, which takes part from the next average on and may become the leader."""
        self._present.add(rank)
        self._departed.discard(rank)
        if rank == self._leader:
            self._reported_to = NOBODY
            self._ready.clear()
        self._report_ready()
        self._join_next_average()

    def remove_member(self, rank: int) -> None:
        """Remove a rank that is gone, after all its messages have been handled."""
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
        # Abandon a running average that needed the lost rank; its samples count again.
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
        """Report to the leader, once per average, that this rank is ready."""
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
        """Begin an average if this rank leads, enough ranks are ready and no average is running."""
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
        """Take part in the next average, once the last has ended and all its members are known.

        If another average is queued behind it, its unknown members are lost: the leader cannot
        have finished, without this rank, an average that it waits for.
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
            # Reset even if a member is gone, because the leader has reset its set of ready ranks.
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
    """Choose the members that average one part of the model each.

    There are few enough that each part is worth a message. The choice rotates from one average to
    the next.
    """
    count = min(max(model.numel() * model.element_size() // MIN_PART_BYTES, 1), len(members))
    return tuple(members[(number + place) % len(members)] for place in range(count))


def pack_ranks(members: Collection[int]) -> tuple[int, ...]:
    """Encode ranks as numbers of a message, one bit per rank."""
    words = [0] * (max(members) // WORD_BITS + 1)
    for rank in members:
        words[rank // WORD_BITS] |= 1 << rank % WORD_BITS
    return tuple(words)


def unpack_ranks(words: Collection[int]) -> tuple[int, ...]:
    """Decode ranks from the numbers of a message, in ascending order."""
    return tuple(
        place * WORD_BITS + bit
        for place, word in enumerate(words)
        for bit in range(WORD_BITS)
        if word >> bit & 1
    )
