"""Rule of servers whose workers are at most a number of clocks apart; pure.

With a bound of 0 it is `parameter_server`, without a bound `asynchronous`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import groupby

from laggard.core.rules.server_rule import Push, Reaction, ServerReply, Update
from laggard.core.span_schema import NOBODY


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
    _members_at: Counter[int] = field(init=False)
    _pending: list[Push] = field(default_factory=list)
    _waiting_clocks: dict[int, int] = field(default_factory=dict)
    _first_unpushed_clocks: dict[int, int] = field(default_factory=dict)
    _complete_clock: int = 0
    _seen_clock: int = 0

    def __post_init__(self) -> None:
        self._finished_clocks = dict.fromkeys(range(self.world_size), 0)
        self._members_at = Counter({0: self.world_size})

    @property
    def complete_clock(self) -> int:
        """Number of clocks that all present workers have finished; it never decreases."""
        return self._complete_clock

    def push(self, push: Push) -> Reaction:
        """Handle the gradient of a worker (see `ServerUpdateRule`)."""
        self._first_unpushed_clocks[push.rank] = push.clock + 1
        self._move(push.rank, push.clock + 1)
        self._pending.append(push)
        return self._react(push.rank)

    def remove_member(self, rank: int) -> Reaction:
        """Stop waiting for a worker that is gone (see `ServerUpdateRule`)."""
        self._forget(rank)
        self._waiting_clocks.pop(rank, None)
        self._complete_clocks()
        return self._react(rank)

    def add_member(self, rank: int) -> Reaction:
        """Add a worker at the clock of the slowest worker (see `ServerUpdateRule`).

        So it delays no worker that is not already delayed by another.
        """
        # Never a clock that its earlier session pushed: that gradient may already be applied.
        self._move(rank, max(self.complete_clock, self._first_unpushed_clocks.get(rank, 0)))
        return self._react(rank)

    def _move(self, rank: int, clock: int) -> None:
        """Let a worker wait for a clock, all of whose earlier ones it has finished."""
        self._forget(rank)
        self._finished_clocks[rank] = self._waiting_clocks[rank] = clock
        self._members_at[clock] += 1
        self._complete_clocks()

    def _forget(self, rank: int) -> None:
        clock = self._finished_clocks.pop(rank, None)
        if clock is not None:
            self._members_at[clock] -= 1

    def _complete_clocks(self) -> None:
        """Pass the clocks that all present workers have finished."""
        while self._finished_clocks and not self._members_at[self._complete_clock]:
            del self._members_at[self._complete_clock]
            self._complete_clock += 1

    def _react(self, cause: int) -> Reaction:
        # Until the slowest worker advances, a push changes nothing for the others.
        advanced = self._complete_clock != self._seen_clock
        self._seen_clock = self._complete_clock
        waiting = sorted(self._waiting_clocks) if advanced else [cause]
        released = [
            rank
            for rank in waiting
            if rank in self._waiting_clocks and self._can_begin(self._waiting_clocks[rank])
        ]
        replies = tuple(
            ServerReply(rank, self._waiting_clocks.pop(rank), NOBODY if rank == cause else cause)
            for rank in released
        )
        return Reaction(self._take_updates(advanced=advanced), replies)

    def _take_updates(self, *, advanced: bool) -> tuple[Update, ...]:
        """Return the updates of the pushes that count now."""
        if not advanced:
            if not self._pending or not self._is_visible(self._pending[-1].clock):
                return ()
            return (_build_proportional_update((self._pending.pop(),)),)
        visible = [push for push in self._pending if self._is_visible(push.clock)]
        self._pending = [push for push in self._pending if not self._is_visible(push.clock)]
        visible.sort(key=lambda push: (push.clock, push.rank))
        return tuple(
            _build_proportional_update(tuple(pushes))
            for _, pushes in groupby(visible, key=lambda push: push.clock)
        )

    def _is_visible(self, clock: int) -> bool:
        return self.staleness is None or clock < self.complete_clock + self.staleness

    def _can_begin(self, clock: int) -> bool:
        return self.staleness is None or clock <= self.complete_clock + self.staleness


def _build_proportional_update(pushes: tuple[Push, ...]) -> Update:
    """Return an update whose fraction is its part of the clock's batch."""
    return Update(pushes, sum(push.samples for push in pushes) / pushes[0].batch_size)
