"""Links in use: requested, current and measured values, with equal links in groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from laggard.core.virtual_time import Dilation
from laggard.network_emulation.fidelity.probes.echo import EchoProbe
from laggard.network_emulation.jitter import delay_grid_ms, median_of_sum_ms
from laggard.network_emulation.link_plan import Constraint, LinkPlan, Pair, dilate_constraint
from laggard.network_emulation.links.backend import LinkCounters

_ECHOES = 6
"""Echoes of one round-trip probe; few, because links are in use."""
_SPACING_MS = 10.0
_PATIENCE_MS = 300.0


@dataclass(frozen=True)
class LinkGroup:
    """Ordered pairs of the same two layers with equal requested and equal current constraints.

    Attributes:
        src_layer: tier that sends.
        dst_layer: tier that receives.
        pairs: the ordered pairs; the first represents all if only one is measured.
        requested: constraint that a single flow was to see (`LinkPlan.expected`), in virtual
            units.
        current: constraint that it should see now, after the events so far.
    """

    src_layer: str
    dst_layer: str
    pairs: tuple[Pair, ...]
    requested: Constraint
    current: Constraint


@dataclass(frozen=True)
class LiveLink:
    """Current state of one group, in virtual units.

    Attributes:
        group: the links.
        requested_rtt_ms: median round trip of an empty packet on idle links, for the current
            constraints of both directions.
        rtt_ms: round trip measured on the group's first pair, with its current traffic; None if no
            echo came back.
        carried_mbps: rate carried by all its links together since the last look.
        dropped: packets that all its links dropped since the last look.
    """

    group: LinkGroup
    requested_rtt_ms: float
    rtt_ms: float | None
    carried_mbps: float
    dropped: int


@dataclass(frozen=True)
class Look:
    """Counters of the links at one moment of CLOCK_MONOTONIC."""

    at_ns: int
    counters: Mapping[Pair, LinkCounters]


def group_links(plan: LinkPlan, current: Callable[[Pair], Constraint]) -> tuple[LinkGroup, ...]:
    """Return all constrained links in groups, in the order of the plan's hosts.

    Args:
        plan: the requested links, in virtual units.
        current: function that returns the current constraint of an ordered pair, without access
            links and bottlenecks.
    """
    now = replace(plan, pairs={pair: current(pair) for pair in plan.pairs})
    layers = {host.name: host.layer for host in plan.hosts}
    names = [host.name for host in plan.hosts]
    groups: dict[tuple[str, str, Constraint, Constraint], list[Pair]] = {}
    for pair in ((src, dst) for src in names for dst in names if src != dst):
        asked, given = plan.expected(*pair), now.expected(*pair)
        if not (asked.is_neutral and given.is_neutral):
            groups.setdefault((layers[pair[0]], layers[pair[1]], asked, given), []).append(pair)
    return tuple(
        LinkGroup(src, dst, tuple(pairs), *both) for (src, dst, *both), pairs in groups.items()
    )


def round_trip_probes(
    groups: Sequence[LinkGroup], current: Callable[[Pair], Constraint], dilation: Dilation
) -> tuple[EchoProbe, ...]:
    """Return one short series of echoes per group, on its first pair.

    One round trip serves both directions.

    Args:
        groups: result of `group_links`.
        current: function that returns the current constraint of an ordered pair, in virtual units.
        dilation: dilation of the run.
    """
    probes: dict[frozenset[str], EchoProbe] = {}
    for group in groups:
        src, dst = group.pairs[0]
        real = [dilate_constraint(current(pair), dilation) for pair in ((src, dst), (dst, src))]
        longest_ms = sum(each.longest_delay_ms for each in real)
        probes.setdefault(
            frozenset((src, dst)),
            EchoProbe(src, dst, _ECHOES, _SPACING_MS, longest_ms + dilation.real_ms(_PATIENCE_MS)),
        )
    return tuple(probes.values())


def live_links(
    groups: Sequence[LinkGroup],
    current: Callable[[Pair], Constraint],
    round_trips_ms: Mapping[Pair, float | None],
    before: Look,
    now: Look,
    dilation: Dilation,
) -> tuple[LiveLink, ...]:
    """Return the current state of every group.

    Args:
        groups: result of `group_links`.
        current: function that returns the current constraint of an ordered pair, in virtual units.
        round_trips_ms: results for `round_trip_probes`, in real ms.
        before: previous look at the counters.
        now: this look at the counters.
        dilation: dilation of the run.
    """
    return tuple(
        _build_live_link(group, current, round_trips_ms, before, now, dilation) for group in groups
    )


def _build_live_link(
    group: LinkGroup,
    current: Callable[[Pair], Constraint],
    round_trips_ms: Mapping[Pair, float | None],
    before: Look,
    now: Look,
    dilation: Dilation,
) -> LiveLink:
    src, dst = group.pairs[0]
    real_ms = round_trips_ms.get((src, dst), round_trips_ms.get((dst, src)))
    gone = [_subtract_counters(before, now, pair) for pair in group.pairs]
    # At least a nanosecond, so that two looks at the same moment give a rate.
    virtual_s = dilation.virtual_s(max(1, now.at_ns - before.at_ns) / 1e9)
    return LiveLink(
        group,
        requested_rtt_ms=_median_rtt_ms(current((src, dst)), current((dst, src))),
        rtt_ms=None if real_ms is None else real_ms / dilation.factor,
        carried_mbps=sum(each.bytes for each in gone) * 8e-6 / virtual_s,
        dropped=sum(each.dropped for each in gone),
    )


def _median_rtt_ms(there: Constraint, back: Constraint) -> float:
    grids = [
        delay_grid_ms(each.delay_ms, each.jitter_ms, each.distribution) for each in (there, back)
    ]
    return median_of_sum_ms(grids[0], grids[1], _ECHOES // 2)[0]


def _subtract_counters(before: Look, now: Look, pair: Pair) -> LinkCounters:
    first, last = (look.counters.get(pair, LinkCounters(0, 0, 0)) for look in (before, now))
    return LinkCounters(
        last.bytes - first.bytes, last.packets - first.packets, last.dropped - first.dropped
    )
