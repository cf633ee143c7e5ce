"""One rank's part in averages of all ranks' models that nobody waits for; pure.

Every rank tells the lowest one that is there, the leader, when it has taken enough steps since the
last average. When enough ranks have, the leader has all begin one: each brings its model as it is
at that moment, weighted by the samples that it has learnt from since the last, and goes on training
meanwhile. When the mean has come round, the rank's model moves by the mean less what it brought:
what was learnt meanwhile stays in it.

Who has learnt nothing new counts nothing, and is told the mean like all others. Where the terms say
so ranks wait, all the same, so that all learn alike. The leader may change the terms with every
average. If a member is lost, or the leader, the average is given up by all who do not have it yet,
and what they have learnt counts in the next.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum

import torch

from laggard.workloads.learnt import NOBODY
from laggard.workloads.strategies.direct_average import DirectAverage, Part
from laggard.workloads.transport.frames import Message

READY, BEGIN, PART = 2, 3, 4
PART_BYTES = 1 << 18
"""Of a model that one rank averages for all, at least: what a message costs by itself should not
count beside it."""

WORD_BITS = 62
"""Ranks told of in one number of a message."""


@dataclass(frozen=True)
class Brought:
    """A rank's model as it goes into an average, and the samples that it counts by."""

    model: torch.Tensor
    samples: int


class Manner(IntEnum):
    """How ranks come by each other's models."""

    BESIDE = 0
    """All are averaged, and nobody waits for it."""

    WAITING = 1
    """All are averaged, and all wait until that is over."""

    PAIRS = 2
    """Two by two whenever there is time (see exchange.py), and now and then all; nobody waits."""


@dataclass(frozen=True)
class Terms:
    """When ranks average, and how.

    Attributes:
        steps: since the last average of all after which a rank is ready for the next.
        manner: what is done meanwhile.
    """

    steps: int
    manner: Manner = Manner.BESIDE

    @property
    def waits(self) -> bool:
        """Whether a rank that is ready waits until the average is over; else it goes on."""
        return self.manner is Manner.WAITING

    @property
    def only_timed(self) -> bool:
        """Whether averages of all are made for no more than to know what they take.

        They come seldom where models go two by two, since they take many steps. Such a mean is of
        models of long ago: it would put back what exchanges have done since.
        """
        return self.manner is Manner.PAIRS and self.steps > 1


@dataclass(frozen=True)
class Outcome:
    """An average that is over for this rank: what its model is to move by, None where it was given
    up or only timed; and the samples that are to count again then.
    """

    move: torch.Tensor | None
    samples: int


@dataclass(frozen=True)
class Measured:
    """What the leader knows when it begins an average, in real ns.

    Attributes:
        average_ns: what the last one took, from its beginning until the leader had the mean.
        step_ns: what a step takes, by rank, of those that have said so.
    """

    average_ns: int
    step_ns: Mapping[int, int]


@dataclass(frozen=True)
class Untimed:
    """What the leader knows before any average has been timed, in real ns.

    Attributes:
        step_ns: what a step takes, by rank, of those that have said so.
        trip_ns: how long models of an exchange of two were on their way, there and back, by the
            rank that began it, of those that have said so.
        taken: steps that the leader has taken since the beginning, or since the last average.
    """

    step_ns: Mapping[int, int]
    trip_ns: Mapping[int, int]
    taken: int


Lead = Callable[[Measured, Terms], Terms]
Open = Callable[[Untimed, Terms], Terms | None]


def keep(_measured: Measured, terms: Terms) -> Terms:
    """Terms that stay as they are."""
    return terms


def at_once(_untimed: Untimed, terms: Terms) -> Terms:
    """The first average is not held back."""
    return terms


@dataclass(frozen=True)
class _Call:
    leader: int
    number: int
    members: tuple[int, ...]
    terms: Terms


@dataclass(frozen=True)
class _Joined:
    call: _Call
    brought: Brought
    average: DirectAverage
    since_ns: int


class AverageMember:
    """A state machine: told of steps, messages and losses, it says what to send.

    Args:
        rank: whose.
        there: all ranks.
        terms: to begin with.
        ready_part: part of the ranks that must be ready; where they wait, all must.
        bring: the model as it is now, and what it counts.
        settle: told what became of an average, once it is over and before the model is brought
            again.
        lead: what the terms are to be from now on, where this rank is the leader.
        first: as long as no average has been timed: the terms on which one is to begin, None where
            none is yet.
        clock_ns: the time.
        begun: number of the average before the first that this rank may lead.

    Attributes:
        terms: as they are now.
        outbox: what to send, in order: to whom, and what.
    """

    def __init__(
        self,
        rank: int,
        there: Collection[int],
        terms: Terms,
        ready_part: float,
        bring: Callable[[], Brought],
        settle: Callable[[Outcome], None],
        lead: Lead = keep,
        first: Open = at_once,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        begun: int = 0,
    ) -> None:
        self._rank, self._there, self.terms = rank, set(there), terms
        self._ready_part, self._bring, self._settle = ready_part, bring, settle
        self._lead, self._first, self._clock_ns = lead, first, clock_ns
        self.outbox: deque[tuple[int, Message]] = deque()
        self._taken = self._step_ns = 0
        self._trip_ns: int | None = 0
        self._trips_ns: dict[int, int] = {}
        self._average_ns: int | None = None
        self._steps_ns: dict[int, int] = {}
        self._told = NOBODY
        self._ready: set[int] = set()
        self._gone: set[int] = set()
        self._called = begun
        self._included: set[int] = set()
        self._followed: dict[int, int] = {}
        self._calls: deque[_Call] = deque()
        self._joined: _Joined | None = None
        self._early: dict[tuple[int, int], list[tuple[int, Part]]] = {}

    def take_steps(self, steps: int, step_ns: int, trip_ns: int | None = 0) -> None:
        """This rank has finished some.

        Args:
            steps: how many.
            step_ns: what each took, in the mean.
            trip_ns: how long models of an exchange of two were on their way, there and back; None
                where it is to have one before it is ready for an average of all, 0 where it has
                none.
        """
        self._taken, self._step_ns, self._trip_ns = self._taken + steps, step_ns, trip_ns
        self._note_pace(self._rank, step_ns, trip_ns or 0)
        self._tell()
        self._call()

    @property
    def waits(self) -> bool:
        """Whether this rank may not take another step now."""
        return (
            self.terms.waits
            and len(self._there) > 1
            and (self._joined is not None or self._taken >= self.terms.steps)
        )

    def hear(self, message: Message) -> None:
        """Another rank's."""
        if message.sender not in self._there:
            return
        if message.kind == READY:
            self._note_pace(message.sender, *message.values)
            # Else it was ready for an average that has begun since.
            unled = message.version == NOBODY and message.sender not in self._included
            if message.version == self._called or unled:
                self._ready.add(message.sender)
            self._call()
        elif message.kind == BEGIN:
            steps, manner, *words = message.values
            self._follow(
                _Call(
                    message.sender, message.version, members_of(words), Terms(steps, Manner(manner))
                )
            )
        elif message.kind == PART:
            assert message.tensor is not None
            leader, is_mean, weight = message.values
            part = Part(self._rank, bool(is_mean), weight, message.tensor)
            self._hear_part((leader, message.version), message.sender, part)

    def admit(self, rank: int) -> None:
        """A rank is there, after all or again; it takes part from the next average on, and may be
        who leads them.
        """
        self._there.add(rank)
        self._gone.discard(rank)
        if rank == self._leader:
            self._told = NOBODY
            self._ready.clear()
        self._tell()
        self._join()

    def leave(self, rank: int) -> None:
        """A rank is gone, and all that it had sent has been heard."""
        self._there.discard(rank)
        self._gone.add(rank)
        self._ready.discard(rank)
        self._included.discard(rank)
        self._steps_ns.pop(rank, None)
        self._trips_ns.pop(rank, None)
        self._followed.pop(rank, None)
        self._early = {key: held for key, held in self._early.items() if key[0] != rank}
        self._calls = deque(call for call in self._calls if call.leader in self._there)
        joined = self._joined
        if joined is not None and not self._whole(joined.call):
            self._conclude(Outcome(None, joined.brought.samples))
        if rank == self._told:
            self._told = NOBODY
        self._tell()
        self._call()

    @property
    def _leader(self) -> int:
        return min(self._there)

    def _whole(self, call: _Call) -> bool:
        return call.leader in self._there and self._there.issuperset(call.members)

    def _tell(self) -> None:
        """Once for each average: that this rank is ready."""
        if self._taken < self.terms.steps or self._told != NOBODY or self._joined is not None:
            return
        if self._trip_ns is None:
            return
        self._told = self._leader
        if self._told == self._rank:
            self._ready.add(self._rank)
            self._call()
        else:
            number = self._followed.get(self._told, NOBODY)
            self.outbox.append((self._told, Message(READY, number, (self._step_ns, self._trip_ns))))

    def _note_pace(self, rank: int, step_ns: int, trip_ns: int) -> None:
        self._steps_ns[rank] = step_ns
        if trip_ns:
            self._trips_ns[rank] = trip_ns

    def _call(self) -> None:
        """As the leader, begin an average if enough are ready, and the last is over here."""
        part = 1.0 if self.terms.waits else self._ready_part
        wanted = max(1, math.ceil(part * len(self._there)))
        if (
            self._leader != self._rank
            or self._joined is not None
            or len(self._ready) < wanted
            or len(self._there) < 2
        ):
            return
        terms = self._terms_to_call_on()
        if terms is None:
            return
        self._called, self._ready = self._called + 1, set()
        call = _Call(self._rank, self._called, tuple(sorted(self._there)), terms)
        self._included.update(call.members)
        told = (terms.steps, int(terms.manner), *words_of(call.members))
        for rank in call.members:
            if rank != self._rank:
                self.outbox.append((rank, Message(BEGIN, call.number, told)))
        self._follow(call)

    def _terms_to_call_on(self) -> Terms | None:
        if self._average_ns is not None:
            return self._lead(Measured(self._average_ns, dict(self._steps_ns)), self.terms)
        return self._first(
            Untimed(dict(self._steps_ns), dict(self._trips_ns), self._taken), self.terms
        )

    def _follow(self, call: _Call) -> None:
        self._calls.append(call)
        self._join()

    def _join(self) -> None:
        """Take part in the next average, once the last is over, and all its members have made
        themselves known.

        Who has not by the time of the next one is lost: without this rank the leader cannot have
        ended that which it waits with.
        """
        while self._joined is None and self._calls:
            unknown = set(self._calls[0].members) - self._there - self._gone
            if unknown and len(self._calls) == 1:
                return
            call = self._calls.popleft()
            key = (call.leader, call.number)
            early = self._early.pop(key, [])
            self._early = {
                other: held
                for other, held in self._early.items()
                if other[0] != key[0] or other > key
            }
            # Also where a member is gone: the leader has forgotten who was ready.
            self._taken, self._told, self.terms = 0, NOBODY, call.terms
            self._followed[call.leader] = call.number
            if not self._whole(call):
                continue
            brought = self._bring()
            owners = owners_of(call.members, call.number, brought.model)
            average = DirectAverage(
                call.members, self._rank, brought.model, brought.samples, owners
            )
            self._joined = _Joined(call, brought, average, self._clock_ns())
            self._send(average.begin())
            for sender, part in early:
                self._hear_part(key, sender, part)

    def _hear_part(self, key: tuple[int, int], sender: int, part: Part) -> None:
        joined = self._joined
        if joined is None or (joined.call.leader, joined.call.number) != key:
            self._early.setdefault(key, []).append((sender, part))
            return
        self._send(joined.average.hear(sender, part))
        if joined.average.complete:
            self._average_ns = self._clock_ns() - joined.since_ns
            self._conclude(self._outcome(joined))

    def _outcome(self, joined: _Joined) -> Outcome:
        if joined.call.terms.only_timed:
            return Outcome(None, joined.brought.samples)
        mean = joined.average.mean
        return Outcome(None if mean is None else mean - joined.brought.model, 0)

    def _send(self, parts: list[Part]) -> None:
        assert self._joined is not None
        call = self._joined.call
        for part in parts:
            values = (call.leader, int(part.is_mean), part.weight)
            self.outbox.append((part.rank, Message(PART, call.number, values, part.values)))

    def _conclude(self, outcome: Outcome) -> None:
        self._joined = None
        self._settle(outcome)
        self._tell()
        self._join()
        self._call()


def owners_of(members: tuple[int, ...], number: int, model: torch.Tensor) -> tuple[int, ...]:
    """Which members average a part each: as few as make it worth a message, and others in the next
    average.
    """
    count = min(max(model.numel() * model.element_size() // PART_BYTES, 1), len(members))
    return tuple(members[(number + place) % len(members)] for place in range(count))


def words_of(members: Collection[int]) -> tuple[int, ...]:
    """Ranks as numbers of a message: a bit each."""
    words = [0] * (max(members) // WORD_BITS + 1)
    for rank in members:
        words[rank // WORD_BITS] |= 1 << rank % WORD_BITS
    return tuple(words)


def members_of(words: Collection[int]) -> tuple[int, ...]:
    """The ranks that the numbers of a message say, in ascending order."""
    return tuple(
        place * WORD_BITS + bit
        for place, word in enumerate(words)
        for bit in range(WORD_BITS)
        if word >> bit & 1
    )
