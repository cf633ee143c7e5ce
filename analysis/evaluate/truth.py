"""The truth that findings are judged by: what was injected, as events. The analysis never sees
it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from laggard.analysis.evaluate.oracle import detectable
from laggard.analysis.generate import hosts_of
from laggard.analysis.generate_durations import slows
from laggard.analysis.load import RankHost
from laggard.analysis.trace_spec import Injection, Noise, TraceSpec
from laggard.run_schema import Family, Kind

WHOLE_RUN = 0.9
"""Deterministic is what covers this share of the steps."""


@dataclass(frozen=True)
class Event:
    """One slowness that was put into a run.

    Attributes:
        family: of what.
        kind: deterministic or dynamic.
        rank: whose; None for the network.
        links: the directed links (src, dst) that were slowed and carry traffic; any of them is a
            right name.
        first: its first step.
        last: its last step, inclusive.
        detectable: whether a test that knows when, where and how large could tell (`oracle`).
    """

    family: Family
    kind: Kind
    rank: int | None
    links: frozenset[tuple[str, str]]
    first: int
    last: int
    detectable: bool

    @property
    def label(self) -> tuple[Family, Kind]:
        """Its class."""
        return (self.family, self.kind)


def events_of(spec: TraceSpec) -> tuple[Event, ...]:
    """The events of a generated run.

    Args:
        spec: what it is generated from.

    Returns:
        One per injection, in their order; warm-up steps are in none, as they are judged by nobody.
    """
    hosts = hosts_of(spec)
    return tuple(_event(spec, hosts, cause) for cause in spec.injections)


def _event(spec: TraceSpec, hosts: tuple[RankHost, ...], cause: Injection) -> Event:
    first = max(cause.first, spec.warm_up_steps)
    last = spec.steps - 1 if cause.last is None else min(cause.last, spec.steps - 1)
    length = last - first + 1
    lasting = length >= WHOLE_RUN * (spec.steps - spec.warm_up_steps)
    return Event(
        family=cause.family,
        kind="deterministic" if lasting else "dynamic",
        rank=None if cause.family == "network" else cause.rank,
        links=_links(hosts, cause) if cause.family == "network" else frozenset(),
        first=first,
        last=last,
        detectable=detectable(length, cause.factor, series_sigma(cause.family, spec)),
    )


def _links(hosts: tuple[RankHost, ...], cause: Injection) -> frozenset[tuple[str, str]]:
    ring = ((rank, src, hosts[(rank + 1) % len(hosts)]) for rank, src in enumerate(hosts))
    return frozenset(
        (src.host, dst.host) for rank, src, dst in ring if slows(cause, rank, (src.tier, dst.tier))
    )


def series_sigma(family: Family, spec: TraceSpec) -> float:
    """Standard deviation, from step to step, of the log durations in which a slowness shows.

    Spikes are left out: they make it harder, and who excuses less is stricter.

    Args:
        family: of what.
        spec: of the generated run.

    Returns:
        Of a rank's compute (its own jitter, and half of it in each phase), of its reading, or of
        the collectives.
    """
    noise: Noise = spec.noise
    if family == "network":
        return noise.transfer_sigma
    if family == "storage":
        return math.hypot(noise.sigma / 2, noise.fetch_sigma)
    phases = (spec.prep_s, spec.forward_s, spec.backward_s, spec.optimizer_s)
    return noise.sigma * math.sqrt(1.0 + sum(s * s for s in phases) / (2.0 * sum(phases)) ** 2)
