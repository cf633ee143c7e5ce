"""One direction between two hosts, and changes of its rate or delay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from laggard.core.errors import InputError

HopEnds = tuple[str, str]


@dataclass(frozen=True)
class LinkChange:
    """Changed rate or delay of one link, or of all links between two tiers.

    Attributes:
        src: name of the sending host or tier.
        dst: name of the receiving host or tier.
        rate_mbps: new rate; None keeps the measured one.
        delay_ms: new one-way delay, end to end; None keeps the measured one.
        symmetric: if true, the opposite direction changes as well.

    Examples:
        >>> faster = LinkChange("edge", "cloud", rate_mbps=400.0)
        >>> faster.delay_ms is None
        True
    """

    src: str
    dst: str
    rate_mbps: float | None = None
    delay_ms: float | None = None
    symmetric: bool = True

    def __post_init__(self) -> None:
        if self.rate_mbps is None and self.delay_ms is None:
            raise InputError(
                f"{self.label}: the change has neither a rate nor a delay — set rate_mbps or"
                " delay_ms"
            )
        if self.rate_mbps is not None and not self.rate_mbps > 0:
            raise InputError(
                f"{self.label}: rate_mbps is {self.rate_mbps} and must be greater than 0"
            )
        if self.delay_ms is not None and not 0 <= self.delay_ms < float("inf"):
            raise InputError(
                f"{self.label}: delay_ms is {self.delay_ms} and must be finite and at least 0"
            )

    @property
    def label(self) -> str:
        """Return the link's name for messages."""
        return f"{self.src} to {self.dst}"

    def applies_to(self, ends: HopEnds, tiers: Mapping[str, str]) -> bool:
        """Return True if the change applies to the direction from the first host to the second."""
        ways = [ends, ends[::-1]] if self.symmetric else [ends]
        return any(
            self._matches(self.src, src, tiers) and self._matches(self.dst, dst, tiers)
            for src, dst in ways
        )

    @staticmethod
    def _matches(name: str, host: str, tiers: Mapping[str, str]) -> bool:
        return name in {host, tiers.get(host)}


@dataclass(frozen=True)
class NetworkHop:
    """One direction between two hosts: its highest rate, and the round trip over it."""

    ends: HopEnds
    rate_mbps: float
    rtt_ms: float

    def with_changes(self, changes: Sequence[LinkChange], tiers: Mapping[str, str]) -> NetworkHop:
        """Return the hop after the changes.

        A symmetric change of the delay sets the round trip to twice the delay. An asymmetric one
        adds the delay to half of the present round trip, because the opposite direction is
        unchanged.
        """
        hop = self
        for change in changes:
            if not change.applies_to(hop.ends, tiers):
                continue
            rate = hop.rate_mbps if change.rate_mbps is None else change.rate_mbps
            rtt = hop.rtt_ms
            if change.delay_ms is not None:
                rtt = 2.0 * change.delay_ms if change.symmetric else change.delay_ms + rtt / 2.0
            hop = replace(hop, rate_mbps=rate, rtt_ms=rtt)
        return hop

    def message_s(self, size_bytes: float, trips: float = 0.5) -> float:
        """Return the seconds of a message that has the hop for itself, and of some round trips."""
        return size_bytes * 8e-6 / self.rate_mbps + trips * self.rtt_ms * 1e-3

    def part_s(self, part_bytes: float) -> float:
        """Return the seconds that one part of a ring all-reduce takes over this hop."""
        half_s = part_bytes / 2.0 * 8e-6 / self.rate_mbps
        return max(2.0 * half_s, half_s + self.rtt_ms * 1e-3)

    def slowed_to(self, part_s: float, part_bytes: float) -> NetworkHop:
        """Return the hop with the rate at which one part takes `part_s` seconds."""
        half_bits, rtt_s = part_bytes * 4e-6, self.rtt_ms * 1e-3
        half_s = part_s / 2.0 if part_s >= 2.0 * rtt_s else max(part_s - rtt_s, 1e-9)
        return replace(self, rate_mbps=min(self.rate_mbps, half_bits / half_s))
