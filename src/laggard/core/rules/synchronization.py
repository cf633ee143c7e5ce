"""Rules of ranks in lockstep: the steps in which they synchronize, and with whom; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class SynchronizesEveryStep:
    """Base of strategies whose ranks have the same model after each step."""

    @property
    def weight(self) -> float:
        """Weight of this rank's model: 1, as for all ranks (see `Strategy`)."""
        return 1.0

    def next_synchronization(self, step: int) -> int:
        """Return `step`: every step synchronizes (see `Strategy`)."""
        return step


@dataclass(frozen=True)
class PeriodicSynchronization:
    """Synchronization in every `every`-th step, and in the last one.

    Attributes:
        every: period in steps; the first synchronization is in step `every - 1`.
        last_step: last step of the training, which also synchronizes; None if it is not known in
            advance.
        after: number of first steps that all synchronize.

    Examples:
        >>> PeriodicSynchronization(every=8, last_step=9).next(8)
        9
    """

    every: int
    last_step: int | None = None
    after: int = 0

    def next(self, step: int) -> int:
        """Return the first synchronization step at or after `step`."""
        if step < self.after:
            return step
        # -(step + 1) modulo `every` is the number of steps left in the period.
        regular = step + (-(step + 1)) % self.every
        if self.last_step is None or step > self.last_step:
            return regular
        return min(regular, self.last_step)

    def is_due(self, step: int) -> bool:
        """Return whether a step synchronizes."""
        return self.next(step) == step


def group_ranks_by_tier(tiers: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of every tier; the tiers are in the order of their first ranks.

    Args:
        tiers: tier of every rank, in rank order.
    """
    return tuple(
        tuple(rank for rank, other in enumerate(tiers) if other == tier)
        for tier in dict.fromkeys(tiers)
    )
