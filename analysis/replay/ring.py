"""All-reduces of a run in lockstep, had their links been otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from laggard.analysis.causes import Cause
from laggard.analysis.columns import FloatArray, IntArray, SpanColumns
from laggard.analysis.link_change import (
    Hop,
    LinkChange,
    hops_of_run,
    require_known,
    ring_finish_s,
    ring_of,
)
from laggard.analysis.links import carried_bytes
from laggard.analysis.load import Run
from laggard.analysis.replay.timeline import Timeline
from laggard.analysis.transfers import Transfers
from laggard.errors import RunFolderError
from laggard.span_schema import Lane, Phase

_LEAST_BYTES = 4096


@dataclass(frozen=True)
class Ring:
    """The ring that a run's gradients went round.

    Attributes:
        hops: its links.
        order: the rank that sends over each.
        payload_bytes: of its all-reduce.
        barriers: indices of the barriers that are that all-reduce.
    """

    hops: tuple[Hop, ...]
    order: tuple[int, ...]
    payload_bytes: float
    barriers: IntArray


def find_ring(run: Run, timeline: Timeline, transfers: Transfers) -> Ring:
    """The ring of a run's dearest collective.

    Raises:
        RunFolderError: the run does not tell of one.
    """
    tiers = {host.host: host.tier for host in run.hosts}
    names = [host.host for host in run.hosts]
    hops = hops_of_run(run, tiers)
    if len(set(names)) < len(names):
        raise RunFolderError(
            f"{run.folder}: several workers share a host, so what goes round is not on the links"
            " alone"
        )
    if not timeline.member[~timeline.pause].all():
        raise RunFolderError(
            f"{run.folder}: not all workers are part of every collective, so one ring does not tell"
            " of them"
        )
    ends = ring_of(carried_bytes(run.links), names)
    if ends is None or any(each not in hops for each in ends):
        raise RunFolderError(
            f"{run.folder}: what the workers sent each other did not go round one ring of all of"
            " them, and only of a ring it is known how one link holds up all"
        )
    group = _dearest(run, timeline, transfers)
    payload = _payload(run, group)
    if payload < _LEAST_BYTES:
        raise RunFolderError(f"{run.folder}: the spans do not say how much the collectives carried")
    order = tuple(names.index(src) for src, _ in ends)
    return Ring(
        tuple(hops[each] for each in ends), order, payload, np.flatnonzero(timeline.group == group)
    )


def transfer_factor(
    ring: Ring,
    run: Run,
    timeline: Timeline,
    causes: Sequence[Cause],
    without: frozenset[int],
    changes: Sequence[LinkChange],
) -> FloatArray:
    """What transfers are multiplied by with changed links, at each barrier, [E + 1].

    All-reduces are gone through with the links as they were and as they would be, from the arrivals
    that were seen. What was slow for a while stays as slow: the links between the tiers that a
    cause names keep the rate that they had then, unless the cause is to be gone.

    Args:
        ring: of the run.
        run: for its hosts.
        timeline: its barriers.
        causes: what was slow.
        without: causes that are gone, as positions.
        changes: of links.

    Raises:
        InputError: a change names no host or tier of the run.
        RunFolderError: transfers were slow for a while, and no link was named.
    """
    tiers = {host.host: host.tier for host in run.hosts}
    require_known(changes, tiers)
    step = timeline.barrier_step[ring.barriers]
    factor = _factor(ring, timeline, ring.barriers, ring.hops, changes, tiers)
    for place, cause in enumerate(causes):
        if cause.family == "network" and cause.kind == "dynamic" and place not in without:
            inside = (step >= cause.first) & (step <= cause.last)
            slowed = slowed_ring(ring, cause, run, tiers)
            factor[inside] = _factor(ring, timeline, ring.barriers[inside], slowed, changes, tiers)
    found = np.ones(len(timeline.group) + 1)
    found[ring.barriers] = factor
    return found


def _factor(
    ring: Ring,
    timeline: Timeline,
    barriers: IntArray,
    hops: Sequence[Hop],
    changes: Sequence[LinkChange],
    tiers: dict[str, str],
) -> FloatArray:
    """From the last arrival until all are through: with changed links over without,
    [len(barriers)].
    """
    arrival = timeline.arrival[barriers][:, list(ring.order)]
    latest = arrival.max(axis=1, initial=-np.inf)
    then = [
        _changed(now, usual, changes, tiers) for now, usual in zip(hops, ring.hops, strict=True)
    ]
    before, after = (
        ring_finish_s(arrival, each, ring.payload_bytes).max(axis=1, initial=-np.inf)
        for each in (hops, then)
    )
    factor: FloatArray = np.maximum(after - latest, 0.0) / np.maximum(before - latest, 1e-9)
    return factor


def _changed(now: Hop, usual: Hop, changes: Sequence[LinkChange], tiers: dict[str, str]) -> Hop:
    """A link after the changes; one that is slower than usual just then stays at the rate that it
    has.
    """
    hop = usual.otherwise(changes, tiers)
    return (
        replace(hop, rate_mbps=min(hop.rate_mbps, now.rate_mbps))
        if now.rate_mbps < usual.rate_mbps
        else hop
    )


def slowed_ring(ring: Ring, cause: Cause, run: Run, tiers: dict[str, str]) -> list[Hop]:
    """The links as they were in a cause's steps: those between the tiers of the one that it names
    take as long as makes up the slowdown.
    """
    if cause.link is None:
        raise RunFolderError(
            f"{run.folder}: from step {cause.first} to {cause.last} transfers were slow, and it is"
            " not known which link held them up — take that cause away as well"
        )
    pair = {tiers.get(end, end) for end in cause.link}
    part_bytes = ring.payload_bytes / len(ring.hops)
    slow_s = max(hop.part_s(part_bytes) for hop in ring.hops) * cause.slowdown
    return [
        (
            hop.slowed_to(slow_s, part_bytes)
            if {tiers.get(end, end) for end in hop.ends} == pair
            else hop
        )
        for hop in ring.hops
    ]


def _dearest(run: Run, timeline: Timeline, transfers: Transfers) -> int:
    groups = np.unique(timeline.group[~timeline.pause])
    if not len(groups):
        raise RunFolderError(
            f"{run.folder}: there is no collective in the run, so no link of it can be otherwise"
        )
    return int(
        max(groups, key=lambda group: float(transfers.seconds[timeline.group == group].sum()))
    )


def _payload(run: Run, group: int) -> float:
    sizes = [_sizes(spans, group) for spans in run.spans.parts()]
    size = np.concatenate(sizes) if sizes else np.zeros(0)
    return float(np.median(size)) if len(size) else 0.0


def _sizes(spans: SpanColumns, group: int) -> IntArray:
    rows = (
        (spans.lane == Lane.MAIN)
        & (spans.phase == Phase.COMM.code)
        & (spans.group == group)
        & (spans.bytes > 0)
    )
    sizes: IntArray = spans.bytes[rows]
    return sizes
