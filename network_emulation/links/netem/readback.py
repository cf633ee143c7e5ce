"""Read-back of link constraints: values that the kernel shows, compared with the requested ones.

The distribution of jitter is not compared, because the kernel does not show it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from laggard.core.errors import EmulationError
from laggard.core.units import parse_delay_ms, parse_loss_percent, parse_rate_mbps
from laggard.network_emulation.links.netem.filters import by_address
from laggard.network_emulation.links.netem.htb import LinkConstraint, LinkSource

_TOLERANCE = 0.005
"""Relative difference that tc's rounding may cause."""


@dataclass(frozen=True)
class AppliedLink:
    """One class of a device as the kernel shows it."""

    rate_mbps: float | None = None
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    loss_percent: float = 0.0
    burst_packets: float = 1.0
    limit: int = 0
    targets: frozenset[str] = frozenset()


def parse_shown(text: str) -> Mapping[int, AppliedLink]:
    """Parse `tc qdisc show`, `tc class show` and `tc filter show` of one device.

    Args:
        text: their output, in any order.

    Returns:
        Applied values by class number.
    """
    applied: dict[int, dict[str, object]] = {}
    for line in text.splitlines():
        if found := re.match(r"qdisc netem \w+: parent 1:(\d+) (.*)", line):
            applied.setdefault(int(found[1]), {}).update(_parse_netem_options(found[2]))
        elif found := re.match(r"qdisc pfifo \w+: parent 1:(\d+) limit (\d+)p", line):
            applied.setdefault(int(found[1]), {})["limit"] = int(found[2])
        elif found := re.match(r"class htb 1:(\d+) .*?\bceil (\S+)", line):
            # `ceil` is the rate of the link; `rate` may be only its guaranteed part.
            applied.setdefault(int(found[1]), {})["rate_mbps"] = parse_rate_mbps(found[2])
    targets: dict[int, set[str]] = {}
    for address, shown in by_address(text, "dst").items():
        if shown.flow is not None:
            targets.setdefault(shown.flow, set()).add(address)
    for flow, addresses in targets.items():
        applied.setdefault(flow, {})["targets"] = frozenset(addresses)
    return {
        number: AppliedLink(**values)  # type: ignore[arg-type]
        for number, values in applied.items()
    }


def _parse_netem_options(options: str) -> Iterable[tuple[str, object]]:
    if found := re.search(r"\blimit (\d+)", options):
        yield "limit", int(found[1])
    if found := re.search(r"\bdelay (\S+)(?:\s+([\d.]+\w*s)\b)?", options):
        yield "delay_ms", parse_delay_ms(found[1])
        yield "jitter_ms", parse_delay_ms(found[2]) if found[2] else 0.0
    if found := re.search(r"\bloss (\S+%)", options):
        yield "loss_percent", parse_loss_percent(found[1])
    elif found := re.search(r"\bloss gemodel p (\S+%) r (\S+%) 1-h 100% 1-k 0%", options):
        begins, ends = (parse_loss_percent(text) / 100 for text in found.groups())
        # Invert `loss_bursts.compute_gilbert_probabilities`.
        yield "loss_percent", 100 * begins / (begins + ends)
        yield "burst_packets", 1 / ends


def verify_constraints(host: str, source: LinkSource, shown: str) -> None:
    """Compare the values that a host shows with its constraints.

    Raises:
        EmulationError: for the first link whose values differ.
    """
    applied = parse_shown(shown)
    for constraint in sorted(source.constraints, key=lambda constraint: int(constraint.number)):
        wrong = _describe_difference(constraint, applied.get(constraint.number, AppliedLink()))
        if wrong:
            fix = "check that no other program changes its queues"
            raise EmulationError(
                f"{host} to {constraint.target}: the kernel shows that {wrong}; {fix}"
            )


def _describe_difference(asked: LinkConstraint, applied: AppliedLink) -> str:
    pairs: tuple[tuple[str, float, float | None], ...] = (
        ("rate in Mbit/s", parse_rate_mbps(asked.rate), applied.rate_mbps),
        ("delay in ms", parse_delay_ms(asked.delay), applied.delay_ms),
        ("jitter in ms", parse_delay_ms(asked.jitter) if asked.jitter else 0.0, applied.jitter_ms),
        (
            "loss in percent",
            parse_loss_percent(asked.loss) if asked.loss else 0.0,
            applied.loss_percent,
        ),
        (
            "mean burst of losses",
            1 / asked.bursts[1] if asked.bursts else 1.0,
            applied.burst_packets,
        ),
        ("queue in packets", float(asked.limit), float(applied.limit)),
    )
    for name, wanted, found in pairs:
        if found is None or abs(wanted - found) > _TOLERANCE * wanted + 1e-3:
            return f"{name} is {found} instead of {wanted:g}"
    if applied.targets == {asked.target, *asked.targets6}:
        return ""
    return f"the filter matches {', '.join(sorted(applied.targets)) or 'no address'}"
