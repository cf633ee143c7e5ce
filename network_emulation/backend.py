"""What both ways of emulating links offer to whoever changes and watches them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from laggard.network_emulation.constraints import Constraint, Pair


@dataclass(frozen=True)
class LinkCounters:
    """What one direction of a link has carried so far (link-layer bytes)."""

    bytes: int
    packets: int
    dropped: int


class LinkBackend(Protocol):
    """Running emulation of all links of a continuum, in real (dilated) units."""

    @property
    def name(self) -> str:
        """`netem` or `userspace`."""

    def change(self, changes: Mapping[Pair, Constraint]) -> int:
        """Give links new constraints while traffic flows; packets under way are not dropped.

        Args:
            changes: the whole new constraint of every ordered pair to change.

        Returns:
            CLOCK_MONOTONIC nanoseconds when the last of them was in effect.

        Raises:
            EmulationError: a constraint could not be applied.
        """

    def counters(self) -> Mapping[Pair, LinkCounters]:
        """What every constrained ordered pair has carried."""

    def lateness_ms(self) -> float | None:
        """How late the emulator itself sent packets at worst so far; None where the kernel does the work."""

    def check_alive(self) -> None:
        """Do nothing while links are being emulated.

        Raises:
            EmulationError: what emulates them is gone.
        """

    def close(self) -> None:
        """Stop emulating."""
