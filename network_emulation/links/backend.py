"""Interface of both link backends, for changing and monitoring links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from laggard.network_emulation.links.plan_links import Constraint, Pair


@dataclass(frozen=True)
class LinkCounters:
    """Traffic of one direction of a link so far (link-layer bytes)."""

    bytes: int
    packets: int
    dropped: int


@dataclass(frozen=True)
class LinkHealth:
    """Indicators of a backend's fidelity that cost nothing to read.

    All counts are since the emulation began.

    Attributes:
        late: packets by the bit length of their lateness in ns; empty if the kernel sends them.
        refused: frames that a receiver's device did not accept.
        carried: bytes of every link that has had a constraint; empty if reading them is expensive.
    """

    late: tuple[int, ...] = ()
    refused: int = 0
    carried: Mapping[Pair, int] = field(default_factory=dict)


class LinkBackend(Protocol):
    """Running emulation of all links of a continuum, in real (dilated) units."""

    @property
    def name(self) -> str:
        """Return `netem` or `userspace`."""

    def change(self, changes: Mapping[Pair, Constraint]) -> int:
        """Change the constraints of links while traffic flows; packets under way are not dropped.

        Args:
            changes: complete new constraint of every ordered pair to change.

        Returns:
            CLOCK_MONOTONIC nanoseconds at which the last change took effect.

        Raises:
            EmulationError: if a constraint could not be applied.
        """

    def counters(self) -> Mapping[Pair, LinkCounters]:
        """Return the traffic of every constrained ordered pair."""

    def lateness_ms(self) -> float | None:
        """Return the emulator's worst lateness so far, in real milliseconds.

        It is None if the kernel sends the packets.
        """

    def health(self) -> LinkHealth:
        """Return the values that can be monitored while training runs."""

    def check_alive(self) -> None:
        """Raise an error if links are no longer emulated.

        Raises:
            EmulationError: if the emulator has exited.
        """

    def close(self) -> None:
        """Stop emulating."""
