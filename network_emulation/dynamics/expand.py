"""Expansion of the dynamic entries of `heterogeneity.yaml` into single changes in time.

The functions are pure: the same seed gives the same changes. A random entry occurs once in every
period of `every` seconds. Its moment is uniform over all moments at which it also ends within the
period. So its occurrences never overlap, their total time is exactly `for / every` of the run for
every seed, and the process is stationary. Each host of an entry has its own moments. The links of
an entry change together, like links through one congested place.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence

from laggard.core.errors import Problem, ScenarioError
from laggard.core.hosts import Host, select_hosts
from laggard.core.yaml_source import YamlSource
from laggard.network_emulation.dynamics.changes import (
    Quantity,
    Target,
    TimedChange,
    Values,
    in_order,
)
from laggard.network_emulation.dynamics.traces import TracePoint
from laggard.network_emulation.link_plan import LinkPlan
from laggard.network_emulation.links.plan_links import UNPLACED_HETEROGENEITY
from laggard.network_emulation.model import (
    MAX_CHANGES,
    Heterogeneity,
    HostEvent,
    LinkEvent,
    RandomHostEvent,
    RandomLinkEvent,
    Recurrence,
    TimedHostEvent,
    TimedLinkEvent,
    TraceEvent,
)
from laggard.network_emulation.profiles import Direction, load_profiles

_Spans = Iterator[tuple[float, float]]


def expand_events(
    heterogeneity: Heterogeneity,
    hosts: Sequence[Host],
    plan: LinkPlan,
    horizon_s: float,
    traces: Mapping[str, Sequence[TracePoint]] | None = None,
    source: YamlSource = UNPLACED_HETEROGENEITY,
) -> tuple[TimedChange, ...]:
    """Return all changes of a run, in order of time.

    Args:
        heterogeneity: the entries; planning the links has checked their patterns.
        hosts: every host of the continuum.
        plan: the planned links; only links in `plan.pairs` change.
        horizon_s: virtual seconds after the first-step barrier after which nothing begins.
        traces: points of every trace file by its name in the scenario (see `read_traces`).
        source: the parsed `heterogeneity.yaml`, to locate problems.

    Raises:
        ScenarioError: if there are more than `MAX_CHANGES` changes, or a trace was not read.
    """
    changes: list[TimedChange] = []
    number = 0
    for index, event in enumerate(heterogeneity.events):
        if isinstance(event, TimedLinkEvent | RandomLinkEvent) and event.profile is not None:
            for change in _expand_profile_event(
                event, event.profile, number, hosts, plan, horizon_s
            ):
                changes.append(change)
                number = change.event + 1
                _require_few(len(changes), index, source)
            continue
        for targets, spans in _expand_occurrences(event, hosts, plan, horizon_s):
            if isinstance(event, TraceEvent):
                changes.extend(_expand_trace(event, number, targets, traces or {}, horizon_s))
                number += 1
                continue
            for begin_s, end_s in spans:
                changes.append(
                    TimedChange(begin_s, "begin", number, targets, _list_event_values(event))
                )
                changes.append(TimedChange(end_s, "end", number, targets))
                number += 1
                _require_few(len(changes), index, source)
    return in_order(changes)


def _expand_occurrences(
    event: HostEvent | LinkEvent, hosts: Sequence[Host], plan: LinkPlan, horizon_s: float
) -> Iterator[tuple[tuple[Target, ...], _Spans]]:
    if isinstance(event, TimedHostEvent | RandomHostEvent):
        names = tuple(host.name for host in select_hosts(event.hosts, hosts))
        if isinstance(event, TimedHostEvent):
            yield names, _build_single_span(event.at_s, event.for_s, horizon_s)
            return
        for name in names:
            yield (name,), _draw_recurring_spans(event.random, name, horizon_s)
        return
    links = _select_links(event, hosts, plan)
    if isinstance(event, TimedLinkEvent):
        yield links, _build_single_span(event.at_s, event.for_s, horizon_s)
    elif isinstance(event, RandomLinkEvent):
        yield links, _draw_recurring_spans(event.random, f"{event.src} {event.dst}", horizon_s)
    else:
        yield links, iter(())


def _select_links(event: LinkEvent, hosts: Sequence[Host], plan: LinkPlan) -> tuple[Target, ...]:
    pairs = [
        (s.name, d.name)
        for s in select_hosts(event.src, hosts)
        for d in select_hosts(event.dst, hosts)
    ]
    both = [*pairs, *((d, s) for s, d in pairs)] if event.both_ways else pairs
    return tuple(pair for pair in dict.fromkeys(both) if pair in plan.pairs)


def _expand_profile_event(
    event: TimedLinkEvent | RandomLinkEvent,
    profile: str,
    number: int,
    hosts: Sequence[Host],
    plan: LinkPlan,
    horizon_s: float,
) -> Iterator[TimedChange]:
    """Yield the changes of a profile: up and down at the same moments, as separate events.

    Events are numbered from `number`.
    """
    up = {
        (s.name, d.name)
        for s in select_hosts(event.src, hosts)
        for d in select_hosts(event.dst, hosts)
    }
    ways = ((load_profiles()[profile].up, True), (load_profiles()[profile].down, False))
    for targets, spans in _expand_occurrences(event, hosts, plan, horizon_s):
        for begin_s, end_s in spans:
            for direction, is_up in ways:
                links = tuple(pair for pair in targets if (pair in up) is is_up)
                drawn = direction.distribution if direction.jitter_ms else None
                yield TimedChange(
                    begin_s, "begin", number, links, _list_direction_values(direction), drawn
                )
                yield TimedChange(end_s, "end", number, links)
                number += 1


def _list_direction_values(direction: Direction) -> Values:
    return (
        ("delay_ms", direction.delay_ms),
        ("jitter_ms", direction.jitter_ms),
        ("rate_mbps", direction.rate_mbps),
        ("loss_percent", direction.loss_percent),
        ("burst_packets", direction.burst_packets),
    )


def _build_single_span(at_s: float, for_s: float, horizon_s: float) -> _Spans:
    if at_s < horizon_s:
        yield at_s, at_s + for_s


def _draw_recurring_spans(recurrence: Recurrence, salt: str, horizon_s: float) -> _Spans:
    # The salt gives each host of an entry moments of its own; a digest is the same on every
    # machine.
    digest = hashlib.sha256(f"{recurrence.seed} {salt}".encode()).digest()
    chance = random.Random(digest)  # noqa: S311 - moments of an experiment, to be reproduced
    period = 0
    while period * recurrence.every_s < horizon_s:
        begin_s = period * recurrence.every_s + chance.random() * (
            recurrence.every_s - recurrence.for_s
        )
        if begin_s < horizon_s:
            yield begin_s, begin_s + recurrence.for_s
        period += 1


def _list_event_values(
    event: TimedHostEvent | RandomHostEvent | TimedLinkEvent | RandomLinkEvent,
) -> Values:
    written: tuple[tuple[Quantity, float | None], ...]
    if isinstance(event, TimedHostEvent | RandomHostEvent):
        written = (
            ("cpu", event.cpu),
            ("read_mb_per_s", event.read_mb_per_s),
            ("write_mb_per_s", event.write_mb_per_s),
            ("read_latency_ms", event.read_latency_ms),
            ("write_latency_ms", event.write_latency_ms),
        )
    else:
        written = (
            ("delay_ms", event.delay_ms),
            ("jitter_ms", event.jitter_ms),
            ("rate_mbps", event.rate_mbps),
            ("loss_percent", event.lost_percent),
        )
    return tuple((name, value) for name, value in written if value is not None)


def _expand_trace(
    event: TraceEvent,
    number: int,
    targets: tuple[Target, ...],
    traces: Mapping[str, Sequence[TracePoint]],
    horizon_s: float,
) -> Iterator[TimedChange]:
    """Yield the changes of a trace; its last point lasts to the end of the run."""
    if event.trace not in traces:
        problem = Problem(
            "heterogeneity.yaml",
            0,
            0,
            event.trace,
            "the trace was not loaded",
            "pass the result of read_traces to expand_events",
        )
        raise ScenarioError((problem,))
    for i, point in enumerate(traces[event.trace]):
        if point.seconds < horizon_s:
            yield TimedChange(
                point.seconds, "step" if i else "begin", number, targets, point.values
            )


def _require_few(count: int, index: int, source: YamlSource) -> None:
    if count > MAX_CHANGES:
        rule = f"the entry brings the run to more than {MAX_CHANGES} changes, which is the limit"
        fix = "lengthen `every`, or limit the duration of the run"
        raise ScenarioError((source.locate_problem(("dynamic", index), rule, fix),))
