"""Rules for the steps in which ranks synchronize; pure."""

from __future__ import annotations


class SynchronizesEveryStep:
    """Base of strategies whose ranks have one model after each step."""

    @property
    def weight(self) -> float:
        """All ranks count alike (see `Strategy`)."""
        return 1.0

    def next_synchronization(self, step: int) -> int:
        """This one (see `Strategy`)."""
        return step


def find_next_synchronization(step: int, every: int, last_step: int | None) -> int:
    """The first step, from `step` on, in which they meet: every so many steps, and in the last.

    Args:
        step: from 0.
        every: steps between two meetings; the first is step `every - 1`.
        last_step: the last step of the training, where that is known beforehand.
    """
    regular = step + (-(step + 1)) % every
    return regular if last_step is None or step > last_step else min(regular, last_step)
