"""When a server applies which worker's gradient, and when it lets whom go on: the rules of the
strategies with a server, pure.

A worker's clock is the number of the step it is in. It pushes the gradient of its clock, then waits
for an answer: the model, and its next clock. A rule is told of pushes, one after another, and says
which gradients become updates and who is answered. Workers may leave and come back; who joins waits
for an answer too, which brings it up to date.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol

from laggard.workloads.tracing.step_result import NOBODY


@dataclass(frozen=True)
class Push:
    """A worker's gradient: of which clock, of how many samples, of how many in that clock's whole
    batch.
    """

    rank: int
    clock: int
    samples: int
    batch_size: int


@dataclass(frozen=True)
class Update:
    """Gradients of one clock that make one step of the optimizer, in the order in which they are
    summed.

    `fraction` is the part of a whole step that it is: the step's size is scaled by it.
    """

    pushes: tuple[Push, ...]
    fraction: float

    @property
    def samples(self) -> int:
        """Number of samples of all its gradients."""
        return sum(push.samples for push in self.pushes)


@dataclass(frozen=True)
class ServerReply:
    """A worker goes on: with which clock, for whom it had waited, and how many steps it leaves
    out.
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
    """A server's rule: a state machine."""

    def push(self, push: Push) -> Reaction:
        """A worker has pushed."""

    def remove_member(self, rank: int) -> Reaction:
        """A worker is gone: nobody waits for it any longer, and what it pushed stays."""

    def add_member(self, rank: int) -> Reaction:
        """A worker that had left is there again, and is answered with its clock, at once or later:
        never one that it has pushed before.
        """


@dataclass
class BoundedStalenessRule:
    """No worker is more than `staleness` clocks ahead of the slowest; None: they never wait.

    A worker at clock c sees every update of clocks up to c - s - 1, its own, and of the others what
    has come but that of the last clock that anybody may be in (Ho et al., NIPS 2013, section 3).
    With s = 0 that leaves whole clocks, summed by rank: bulk synchronous parallel.
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
        """Clocks that every worker that is there has finished; it never decreases."""
        return min(self._finished_clocks.values(), default=self._last_complete_clock)

    def push(self, push: Push) -> Reaction:
        """See `ServerUpdateRule`."""
        self._finished_clocks[push.rank] = self._waiting_clocks[
            push.rank
        ] = self._first_unpushed_clocks[push.rank] = push.clock + 1
        self._pending.append(push)
        return self._react(push.rank)

    def remove_member(self, rank: int) -> Reaction:
        """See `ServerUpdateRule`."""
        self._last_complete_clock = self.complete_clock
        self._finished_clocks.pop(rank, None)
        self._waiting_clocks.pop(rank, None)
        return self._react(rank)

    def add_member(self, rank: int) -> Reaction:
        """See `ServerUpdateRule`: it begins where the slowest is, so that it holds nobody up who is
        not held up already.
        """
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
    """An update as large as its part of the clock's batch."""
    return Update(pushes, sum(push.samples for push in pushes) / pushes[0].batch_size)


@dataclass
class BackupWorkersRule:
    """Every step takes the first N = workers - backups gradients and drops the rest (Chen et al.
    2016).
    """

    world_size: int
    backups: int
    _clock: int = 0
    _arrived: list[Push] = field(default_factory=list)
    _left: set[int] = field(default_factory=set)

    @property
    def needed(self) -> int:
        """Gradients in a step: N, or as many as there are workers left."""
        return max(1, min(self.world_size - self.backups, self.world_size - len(self._left)))

    def push(self, push: Push) -> Reaction:
        """See `ServerUpdateRule`."""
        if push.clock < self._clock:
            return Reaction(
                replies=(ServerReply(push.rank, self._clock, skipped=self._clock - push.clock - 1),)
            )
        self._arrived.append(push)
        return self._react(push.rank)

    def remove_member(self, rank: int) -> Reaction:
        """See `ServerUpdateRule`."""
        self._left.add(rank)
        return self._react(rank)

    def add_member(self, rank: int) -> Reaction:
        """See `ServerUpdateRule`: it begins with the step that is under way; where its gradient of
        that is there already, with the next.
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
