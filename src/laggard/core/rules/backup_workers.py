"""Rule of a server that does not wait for the slowest workers of a step; pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from laggard.core.rules.server_rule import Push, Reaction, ServerReply, Update
from laggard.core.span_schema import NOBODY


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
