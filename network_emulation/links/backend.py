"""What both ways of emulating links offer to whoever changes and watches them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from laggard.network_emulation.links.plan_links import Constraint, Pair


@dataclass(frozen=True)
class LinkCounters:
    """What one direction of a link has carried so far (link-layer bytes)."""

    bytes: int
    packets: int
    dropped: int


@dataclass(frozen=True)
class LinkHealth:
    """What tells, at no cost, whether links are still what they were measured to be; counts since
    the emulation began.

    Attributes:
        late: packets by the bit length of their lateness in ns; empty where the kernel sends them.
        refused: frames that a receiver's device did not take.
        carried: bytes of every link that has had a constraint; empty where asking is not free.
    """

    late: tuple[int, ...] = ()
    refused: int = 0
    carried: Mapping[Pair, int] = field(default_factory=dict)


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
        """How late the emulator itself sent packets at worst so far; None where the kernel does the
        work.
        """

    def health(self) -> LinkHealth:
        """What can be watched while training runs."""

    def check_alive(self) -> None:
        """Do nothing while links are being emulated.

        Raises:
            EmulationError: what emulates them is gone.
        """

    def close(self) -> None:
        """Stop emulating."""
