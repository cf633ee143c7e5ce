"""All-reduces of a run in lockstep, had their links been otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from laggard.analysis.detection.causes import Cause
from laggard.analysis.detection.links import sum_carried_bytes
from laggard.analysis.detection.transfers import Transfers
from laggard.analysis.replay.link_model import (
    LinkChange,
    NetworkHop,
    compute_ring_finish_s,
    estimate_run_hops,
    find_ring_ends,
    require_known_ends,
)
from laggard.analysis.tables.columns import FloatArray, IntArray, SpanColumns
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.timeline import Timeline
from laggard.core.errors import RunFolderError
from laggard.core.span_schema import Lane, Phase

_MIN_BYTES = 4096


@dataclass(frozen=True)
class AllReduceRing:
    """The ring that a run's gradients went round.

    Attributes:
        hops: its links.
        order: the rank that sends over each.
        payload_bytes: of its all-reduce.
        barriers: indices of the barriers that are that all-reduce.
    """

    hops: tuple[NetworkHop, ...]
    order: tuple[int, ...]
    payload_bytes: float
    barriers: IntArray


def find_ring(run: RunData, timeline: Timeline, transfers: Transfers) -> AllReduceRing:
    """The ring of a run's dearest collective.

    Raises:
        RunFolderError: the run does not tell of one.
    """
    tiers = {host.host: host.tier for host in run.hosts}
    names = [host.host for host in run.hosts]
    hops = estimate_run_hops(run, tiers)
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
    ends = find_ring_ends(sum_carried_bytes(run.links), names)
    if ends is None or any(each not in hops for each in ends):
        raise RunFolderError(
            f"{run.folder}: what the workers sent each other did not go round one ring of all of"
            " them, and only of a ring it is known how one link holds up all"
        )
    group = _find_costliest_group(run, timeline, transfers)
    payload = _measure_payload(run, group)
    if payload < _MIN_BYTES:
        raise RunFolderError(f"{run.folder}: the spans do not say how much the collectives carried")
    order = tuple(names.index(src) for src, _ in ends)
    return AllReduceRing(
        tuple(hops[each] for each in ends), order, payload, np.flatnonzero(timeline.group == group)
    )


def compute_transfer_factor(
    ring: AllReduceRing,
    run: RunData,
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
    require_known_ends(changes, tiers)
    step = timeline.barrier_step[ring.barriers]
    factor = _compute_factor(ring, timeline, ring.barriers, ring.hops, changes, tiers)
    for place, cause in enumerate(causes):
        if cause.spec.uses_links and cause.kind == "dynamic" and place not in without:
            inside = (step >= cause.first) & (step <= cause.last)
            slowed = slow_down_ring(ring, cause, run, tiers)
            factor[inside] = _compute_factor(
                ring, timeline, ring.barriers[inside], slowed, changes, tiers
            )
    found = np.ones(len(timeline.group) + 1)
    found[ring.barriers] = factor
    return found


def _compute_factor(
    ring: AllReduceRing,
    timeline: Timeline,
    barriers: IntArray,
    hops: Sequence[NetworkHop],
    changes: Sequence[LinkChange],
    tiers: dict[str, str],
) -> FloatArray:
    """From the last arrival until all are through: with changed links over without,
    [len(barriers)].
    """
    arrival = timeline.arrival[barriers][:, list(ring.order)]
    latest = arrival.max(axis=1, initial=-np.inf)
    then = [
        _apply_changes(now, usual, changes, tiers)
        for now, usual in zip(hops, ring.hops, strict=True)
    ]
    before, after = (
        compute_ring_finish_s(arrival, each, ring.payload_bytes).max(axis=1, initial=-np.inf)
        for each in (hops, then)
    )
    factor: FloatArray = np.maximum(after - latest, 0.0) / np.maximum(before - latest, 1e-9)
    return factor


def _apply_changes(
    now: NetworkHop, usual: NetworkHop, changes: Sequence[LinkChange], tiers: dict[str, str]
) -> NetworkHop:
    """A link after the changes; one that is slower than usual just then stays at the rate that it
    has.
    """
    hop = usual.with_changes(changes, tiers)
    return (
        replace(hop, rate_mbps=min(hop.rate_mbps, now.rate_mbps))
        if now.rate_mbps < usual.rate_mbps
        else hop
    )


def slow_down_ring(
    ring: AllReduceRing, cause: Cause, run: RunData, tiers: dict[str, str]
) -> list[NetworkHop]:
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


def _find_costliest_group(run: RunData, timeline: Timeline, transfers: Transfers) -> int:
    groups = np.unique(timeline.group[~timeline.pause])
    if not len(groups):
        raise RunFolderError(
            f"{run.folder}: there is no collective in the run, so no link of it can be otherwise"
        )
    return int(
        max(groups, key=lambda group: float(transfers.seconds[timeline.group == group].sum()))
    )


def _measure_payload(run: RunData, group: int) -> float:
    sizes = [_select_payloads(spans, group) for spans in run.spans.parts()]
    size = np.concatenate(sizes) if sizes else np.zeros(0)
    return float(np.median(size)) if len(size) else 0.0


def _select_payloads(spans: SpanColumns, group: int) -> IntArray:
    rows = (
        (spans.lane == Lane.MAIN)
        & (spans.phase == Phase.COMM.code)
        & (spans.group == group)
        & (spans.bytes > 0)
    )
    sizes: IntArray = spans.bytes[rows]
    return sizes
