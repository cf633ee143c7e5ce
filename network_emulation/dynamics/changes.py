"""Timed changes, and the values in effect while several overlap (pure functions, no clock)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, get_args

from laggard.core.emulated_drive import DriveLimits
from laggard.network_emulation.jitter import Distribution
from laggard.network_emulation.link_plan import Constraint, Pair

StorageQuantity = Literal["read_mb_per_s", "write_mb_per_s", "read_latency_ms", "write_latency_ms"]
LinkQuantity = Literal["delay_ms", "jitter_ms", "rate_mbps", "loss_percent", "burst_packets"]
Quantity = Literal["cpu"] | LinkQuantity | StorageQuantity
STORAGE_QUANTITIES: tuple[StorageQuantity, ...] = get_args(StorageQuantity)
Values = tuple[tuple[Quantity, float], ...]
Target = str | Pair
"""Target of a change: a host, or the ordered pair of hosts at the ends of a link."""


@dataclass(frozen=True)
class TimedChange:
    """Change of some targets at one moment, in virtual units.

    Attributes:
        at_s: time of the change in virtual seconds after the first-step barrier.
        kind: `begin` of an event, `step` to other values (traces), or `end`, which restores the
            previous values.
        event: number of the event; an end removes the values that this event has set.
        targets: hosts or links.
        values: quantities to set; empty at the end.
        distribution: distribution of the jitter from then on; None keeps the current one.
    """

    at_s: float
    kind: Literal["begin", "step", "end"]
    event: int
    targets: tuple[Target, ...]
    values: Values = ()
    distribution: Distribution | None = None


class Overlay:
    """Current values of all targets while events overlap.

    The base values are overlaid by every active event; the event that began last wins. When an
    event ends, its quantities return to the values of the next event below it, or to the base.
    """

    def __init__(
        self,
        shares: Mapping[str, float],
        links: Mapping[Pair, Constraint],
        drives: Mapping[str, DriveLimits] = MappingProxyType({}),
    ) -> None:
        self._shares = shares
        self._links = links
        self._drives = drives
        self._active: dict[Target, dict[int, Values]] = {}
        self._distributions: dict[Target, dict[int, Distribution]] = {}

    def apply(self, change: TimedChange) -> None:
        """Apply a change."""
        for target in change.targets:
            events = self._active.setdefault(target, {})
            if change.kind == "end":
                events.pop(change.event, None)
                self._distributions.get(target, {}).pop(change.event, None)
            # A dict keeps the position of a key that is set again, so a step does not move its
            # event above events that began later.
            else:
                events[change.event] = change.values
                if change.distribution is not None:
                    self._distributions.setdefault(target, {})[change.event] = change.distribution

    def share(self, host: str) -> float:
        """Return the current CPU share of a host."""
        return self._overlaid(host).get("cpu", self._shares[host])

    def drive(self, host: str) -> DriveLimits:
        """Return the current limits of a host's drive."""
        values = self._overlaid(host)
        set_now = {str(name): value for name, value in values.items() if name in STORAGE_QUANTITIES}
        return replace(self._drives.get(host, DriveLimits()), **set_now)

    def constraint(self, pair: Pair) -> Constraint:
        """Return the current constraint of a link."""
        base = self._links.get(pair, Constraint())
        values = self._overlaid(pair)
        jitter_ms = values.get("jitter_ms", base.jitter_ms)
        delay_ms = values.get("delay_ms", base.delay_ms)
        return replace(
            base,
            delay_ms=delay_ms,
            # An event may lower the delay below the jitter, which must not exceed it.
            jitter_ms=min(jitter_ms, delay_ms),
            rate_mbps=values.get("rate_mbps", base.rate_mbps),
            loss_percent=values.get("loss_percent", base.loss_percent),
            distribution=([base.distribution, *self._distributions.get(pair, {}).values()])[-1],
            burst_packets=values.get("burst_packets", base.burst_packets),
        )

    def value(self, target: Target, quantity: Quantity) -> float:
        """Return one current quantity of a target; infinity for an unlimited rate or bandwidth."""
        if quantity == "cpu":
            assert isinstance(target, str)
            return self.share(target)
        holder = self.drive(target) if isinstance(target, str) else self.constraint(target)
        value: float | None = getattr(holder, quantity)
        return float("inf") if value is None else value

    def quantities(self, change: TimedChange, target: Target) -> tuple[Quantity, ...]:
        """Return the quantities of a target that a change will touch; call it before `apply`."""
        before = self._active.get(target, {}).get(change.event, ())
        return tuple(dict.fromkeys(name for name, _ in (*change.values, *before)))

    def _overlaid(self, target: Target) -> dict[Quantity, float]:
        merged: dict[Quantity, float] = {}
        for values in self._active.get(target, {}).values():
            merged.update(values)
        return merged


def in_order(changes: Iterable[TimedChange]) -> tuple[TimedChange, ...]:
    """Return changes in order of time; at the same moment ends come first, then file order."""
    return tuple(
        sorted(changes, key=lambda change: (change.at_s, change.kind != "end", change.event))
    )


def group_by_time(
    changes: Sequence[TimedChange],
) -> Iterator[tuple[float, tuple[TimedChange, ...]]]:
    """Yield ordered changes by moment: the time, and all changes at that time."""
    start = 0
    for i in range(1, len(changes) + 1):
        if i == len(changes) or changes[i].at_s != changes[start].at_s:
            yield changes[start].at_s, tuple(changes[start:i])
            start = i


def peak_shares(shares: Mapping[str, float], changes: Iterable[TimedChange]) -> Mapping[str, float]:
    """Return the largest share that every host ever has; cores must be planned for it."""
    peaks = dict(shares)
    for change in changes:
        for target in change.targets:
            if isinstance(target, str):
                peaks[target] = max(
                    [peaks[target], *(value for name, value in change.values if name == "cpu")]
                )
    return peaks


def peak_rates(
    links: Mapping[Pair, Constraint], changes: Iterable[TimedChange]
) -> Mapping[Pair, float]:
    """Return the highest rate, in Mbit/s, of every link that always has a rate limit."""
    peaks = {
        pair: constraint.rate_mbps
        for pair, constraint in links.items()
        if constraint.rate_mbps is not None
    }
    for change in changes:
        for target in change.targets:
            if not isinstance(target, str) and target in peaks:
                peaks[target] = max(
                    [
                        peaks[target],
                        *(value for name, value in change.values if name == "rate_mbps"),
                    ]
                )
    return peaks
