"""Rules for the steps in which ranks synchronize; pure."""

from __future__ import annotations


class SynchronizesEveryStep:
    """Base of strategies whose ranks have the same model after each step."""

    @property
    def weight(self) -> float:
        """Weight of this rank's model: 1, as for all ranks (see `Strategy`)."""
        return 1.0

    def next_synchronization(self, step: int) -> int:
        """Return `step`: every step synchronizes (see `Strategy`)."""
        return step


def find_next_synchronization(step: int, every: int, last_step: int | None) -> int:
    """Return the first periodic synchronization step at or after `step`.

    Args:
        step: number of a step, from 0.
        every: period in steps; the first synchronization is in step `every - 1`.
        last_step: last step of the training, which also synchronizes; None if it is not known in
            advance.
    """
    # -(step + 1) modulo `every` is the number of steps left in the period.
    regular = step + (-(step + 1)) % every
    return regular if last_step is None or step > last_step else min(regular, last_step)
