"""Truth that findings are judged by: the injected events, which the analysis never sees."""

from __future__ import annotations

import math
from dataclasses import dataclass

from laggard.analysis.detection.families import FAMILIES
from laggard.analysis.evaluate.detectability import is_detectable
from laggard.analysis.evaluate.synthetic.durations import is_link_slowed
from laggard.analysis.evaluate.synthetic.run_generator import build_hosts
from laggard.analysis.evaluate.synthetic.trace_spec import Injection, Noise, TraceSpec
from laggard.analysis.tables.load_run import RankHost
from laggard.core.run_schema import StragglerFamily, StragglerKind

WHOLE_RUN_SHARE = 0.9
"""Least share of the steps that a deterministic event covers."""


@dataclass(frozen=True)
class InjectedEvent:
    """One slowdown that was injected into a run.

    Attributes:
        family: family of the slow work.
        kind: `deterministic` or `dynamic`.
        rank: slow rank; None for the network.
        links: directed links (src, dst) that were slowed and carry traffic; naming any of them is
            correct.
        first: first slow step.
        last: last slow step, inclusive.
        detectable: whether a test that knows time, place and size could detect it (see
            `detectability`).
    """

    family: StragglerFamily
    kind: StragglerKind
    rank: int | None
    links: frozenset[tuple[str, str]]
    first: int
    last: int
    detectable: bool

    @property
    def label(self) -> tuple[StragglerFamily, StragglerKind]:
        """Return the family and kind."""
        return (self.family, self.kind)


def build_events(spec: TraceSpec) -> tuple[InjectedEvent, ...]:
    """Return the events of a generated run.

    Args:
        spec: specification of the run.

    Returns:
        One event per injection, in their order. Warm-up steps belong to no event, since no
        detector examines them.
    """
    hosts = build_hosts(spec)
    return tuple(_build_event(spec, hosts, injection) for injection in spec.injections)


def _build_event(
    spec: TraceSpec, hosts: tuple[RankHost, ...], injection: Injection
) -> InjectedEvent:
    first = max(injection.first, spec.warm_up_steps)
    last = spec.steps - 1 if injection.last is None else min(injection.last, spec.steps - 1)
    length = last - first + 1
    covers_whole_run = length >= WHOLE_RUN_SHARE * (spec.steps - spec.warm_up_steps)
    on_links = FAMILIES[injection.family].uses_links
    return InjectedEvent(
        family=injection.family,
        kind="deterministic" if covers_whole_run else "dynamic",
        rank=None if on_links else injection.rank,
        links=_select_links(hosts, injection) if on_links else frozenset(),
        first=first,
        last=last,
        detectable=is_detectable(
            length, injection.factor, compute_series_sigma(injection.family, spec)
        ),
    )


def _select_links(hosts: tuple[RankHost, ...], injection: Injection) -> frozenset[tuple[str, str]]:
    ring = ((rank, src, hosts[(rank + 1) % len(hosts)]) for rank, src in enumerate(hosts))
    return frozenset(
        (src.host, dst.host)
        for rank, src, dst in ring
        if is_link_slowed(injection, rank, (src.tier, dst.tier))
    )


def compute_series_sigma(family: StragglerFamily, spec: TraceSpec) -> float:
    """Return the step-to-step standard deviation of the log durations that a slowdown affects.

    Spikes are not included. They make detection harder, so leaving them out excuses fewer misses.

    Args:
        family: family of the slowdown.
        spec: specification of the generated run.

    Returns:
        The sigma of a rank's compute, of its reading, or of the collectives.
    """
    noise: Noise = spec.noise
    if family == "network":
        return noise.transfer_sigma
    if family == "storage":
        return math.hypot(noise.sigma / 2, noise.fetch_sigma)
    # Compute has a jitter common to its phases, sigma, and one of sigma / 2 in each phase; the
    # latter averages out by the phases' shares.
    phases = (spec.prep_s, spec.forward_s, spec.backward_s, spec.optimizer_s)
    return noise.sigma * math.sqrt(1.0 + sum(s * s for s in phases) / (2.0 * sum(phases)) ** 2)
