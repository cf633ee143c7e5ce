"""Rules by which a parameter server applies gradients and answers workers; pure.

A worker's clock is the number of the step that it is in. The worker pushes the gradient of its
clock, then waits for an answer: the model and its next clock. A rule receives the pushes one after
another. It decides which gradients become updates and which workers are answered. Workers may
leave and join again. A joining worker waits for an answer, too, which contains the current model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol

from laggard.workloads.tracing.step_result import NOBODY


@dataclass(frozen=True)
class Push:
    """Gradient of one worker.

    Attributes:
        rank: number of the worker.
        clock: clock that the gradient was computed in.
        samples: samples that the gradient sums.
        batch_size: samples in the whole batch of that clock.
    """

    rank: int
    clock: int
    samples: int
    batch_size: int


@dataclass(frozen=True)
class Update:
    """Gradients of one clock that together make one step of the optimizer.

    Attributes:
        pushes: the gradients, in the order in which they are summed.
        fraction: part of a whole step, by which the step size is scaled.
    """

    pushes: tuple[Push, ...]
    fraction: float

    @property
    def samples(self) -> int:
        """Number of samples of all its gradients."""
        return sum(push.samples for push in self.pushes)


@dataclass(frozen=True)
class ServerReply:
    """Answer that lets a worker continue.

    Attributes:
        rank: number of the worker.
        clock: next clock of the worker.
        waited_for: rank whose push or loss released this answer; -1 if it was the worker itself.
        skipped: number of steps that the worker skips.
    """

    rank: int
    clock: int
    waited_for: int = NOBODY
    skipped: int = 0


@dataclass(frozen=True)
class Reaction:
    """Reaction to one push: updates in this order, then answers."""

    updates: tuple[Update, ...] = ()
    replies: tuple[ServerReply, ...] = ()


class ServerUpdateRule(Protocol):
    """Rule of a server, as a state machine."""

    def push(self, push: Push) -> Reaction:
        """Handle the gradient of a worker."""

    def remove_member(self, rank: int) -> Reaction:
        """Stop waiting for a worker that is gone; its earlier pushes still count."""

    def add_member(self, rank: int) -> Reaction:
        """Add a worker that joins again.

        The worker is answered now or later, with a clock that it has never pushed before.
        """


@dataclass
class BoundedStalenessRule:
    """Rule that keeps workers at most `staleness` clocks ahead of the slowest.

    A `staleness` of None means that workers never wait. With a bound s, a worker at clock c sees
    all updates of clocks up to c - s - 1, and its own updates. It also sees the other updates that
    have arrived, except those of the newest clock that any worker may be in (Ho et al., NIPS 2013,
    section 3). With s = 0 every clock is applied as a whole, summed in the order of ranks: bulk
    synchronous parallel.
    """

    world_size: int
    staleness: int | None
    _finished_clocks: dict[int, int] = field(init=False)
    _pending: list[Push] = field(default_factory=list)
    _waiting_clocks: dict[int, int] = field(default_factory=dict)
    _first_unpushed_clocks: dict[int, int] = field(default_factory=dict)
    _last_complete_clock: int = 0

    def __post_init__(self) -> None:
        self._finished_clocks = dict.fromkeys(range(self.world_size), 0)

    @property
    def complete_clock(self) -> int:
        """Number of clocks that all present workers have finished; it never decreases."""
        return min(self._finished_clocks.values(), default=self._last_complete_clock)

    def push(self, push: Push) -> Reaction:
        """Handle the gradient of a worker (see `ServerUpdateRule`)."""
        self._finished_clocks[push.rank] = self._waiting_clocks[
            push.rank
        ] = self._first_unpushed_clocks[push.rank] = push.clock + 1
        self._pending.append(push)
        return self._react(push.rank)

    def remove_member(self, rank: int) -> Reaction:
        """Stop waiting for a worker that is gone (see `ServerUpdateRule`)."""
        # Remembered for the time when no worker is left, so that `complete_clock` cannot decrease.
        self._last_complete_clock = self.complete_clock
        self._finished_clocks.pop(rank, None)
        self._waiting_clocks.pop(rank, None)
        return self._react(rank)

    def add_member(self, rank: int) -> Reaction:
        """Add a worker at the clock of the slowest worker (see `ServerUpdateRule`).

        So it delays no worker that is not already delayed by another.
        """
        # Never a clock that its earlier session pushed: that gradient may already be applied.
        self._finished_clocks[rank] = self._waiting_clocks[rank] = max(
            self.complete_clock, self._first_unpushed_clocks.get(rank, 0)
        )
        return self._react(rank)

    def _react(self, cause: int) -> Reaction:
        visible = [push for push in self._pending if self._is_visible(push.clock)]
        self._pending = [push for push in self._pending if not self._is_visible(push.clock)]
        visible.sort(key=lambda push: (push.clock, push.rank))
        updates = (tuple(pushes) for _, pushes in groupby(visible, key=lambda push: push.clock))
        released = [
            rank for rank, clock in sorted(self._waiting_clocks.items()) if self._can_begin(clock)
        ]
        replies = [
            ServerReply(rank, self._waiting_clocks.pop(rank), NOBODY if rank == cause else cause)
            for rank in released
        ]
        return Reaction(
            tuple(_build_proportional_update(pushes) for pushes in updates), tuple(replies)
        )

    def _is_visible(self, clock: int) -> bool:
        return self.staleness is None or clock < self.complete_clock + self.staleness

    def _can_begin(self, clock: int) -> bool:
        return self.staleness is None or clock <= self.complete_clock + self.staleness


def _build_proportional_update(pushes: tuple[Push, ...]) -> Update:
    """Return an update whose fraction is its part of the clock's batch."""
    return Update(pushes, sum(push.samples for push in pushes) / pushes[0].batch_size)


@dataclass
class BackupWorkersRule:
    """Rule that uses the first N = workers - backups gradients of a step.

    It drops the rest (Chen et al. 2016).
    """

    world_size: int
    backups: int
    _clock: int = 0
    _arrived: list[Push] = field(default_factory=list)
    _left: set[int] = field(default_factory=set)

    @property
    def needed(self) -> int:
        """Number of gradients in a step: N, or the number of present workers if that is less."""
        return max(1, min(self.world_size - self.backups, self.world_size - len(self._left)))

    def push(self, push: Push) -> Reaction:
        """Handle the gradient of a worker (see `ServerUpdateRule`)."""
        # A late gradient is dropped, and its worker skips to the step in progress.
        if push.clock < self._clock:
            return Reaction(
                replies=(ServerReply(push.rank, self._clock, skipped=self._clock - push.clock - 1),)
            )
        self._arrived.append(push)
        return self._react(push.rank)

    def remove_member(self, rank: int) -> Reaction:
        """Stop waiting for a worker that is gone (see `ServerUpdateRule`)."""
        self._left.add(rank)
        return self._react(rank)

    def add_member(self, rank: int) -> Reaction:
        """Add a worker at the step in progress (see `ServerUpdateRule`).

        If its earlier session has already pushed a gradient for that step, it begins with the next
        one.
        """
        self._left.discard(rank)
        has_pushed = any(push.rank == rank for push in self._arrived)
        return Reaction() if has_pushed else Reaction(replies=(ServerReply(rank, self._clock),))

    def _react(self, cause: int) -> Reaction:
        if len(self._arrived) < self.needed:
            return Reaction()
        arrived, self._arrived = sorted(self._arrived, key=lambda push: push.rank), []
        self._clock += 1
        replies = (
            ServerReply(push.rank, self._clock, NOBODY if push.rank == cause else cause)
            for push in arrived
            if push.rank not in self._left
        )
        return Reaction((Update(tuple(arrived), 1.0),), tuple(replies))
