"""All-reduces of a run in lockstep, with changed links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from laggard.analysis.detection.causes import Cause
from laggard.analysis.detection.links import sum_carried_bytes
from laggard.analysis.detection.transfers import Transfers
from laggard.analysis.replay.link_model import estimate_run_hops, find_ring_ends, require_known_ends
from laggard.analysis.tables.columns import FloatArray, IntArray, SpanColumns
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.timeline import Timeline
from laggard.core.cost_model.links import LinkChange, NetworkHop
from laggard.core.cost_model.ring_all_reduce import compute_ring_finish_s
from laggard.core.errors import RunFolderError
from laggard.core.span_schema import Lane, Phase

# Recorded payloads below this size, in bytes, are treated as missing.
_MIN_BYTES = 4096


@dataclass(frozen=True)
class AllReduceRing:
    """Ring over which a run's gradients were reduced.

    Attributes:
        hops: links of the ring.
        order: rank that sends over each link.
        payload_bytes: size of the data that one all-reduce reduces.
        barriers: indices of the barriers that are this all-reduce.
    """

    hops: tuple[NetworkHop, ...]
    order: tuple[int, ...]
    payload_bytes: float
    barriers: IntArray


def find_ring(run: RunData, timeline: Timeline, transfers: Transfers) -> AllReduceRing:
    """Return the ring of the run's most expensive collective.

    Raises:
        RunFolderError: the run's tables do not show one ring of all hosts.
    """
    tiers = {host.host: host.tier for host in run.hosts}
    names = [host.host for host in run.hosts]
    hops = estimate_run_hops(run, tiers)
    if len(set(names)) < len(names):
        raise RunFolderError(
            f"{run.folder}: several workers share a host, so part of the all-reduce does not use"
            " the links — links can be changed only if every worker has its own host"
        )
    if not timeline.member[~timeline.pause].all():
        raise RunFolderError(
            f"{run.folder}: some collectives have only a part of the workers, and links can be"
            " changed only if every collective is one ring of all workers"
        )
    ends = find_ring_ends(sum_carried_bytes(run.links), names)
    if ends is None or any(each not in hops for each in ends):
        raise RunFolderError(
            f"{run.folder}: the traffic between the workers does not form one ring of all workers,"
            " and the effect of one link on the others is modeled for a ring only"
        )
    group = _find_costliest_group(run, timeline, transfers)
    payload = _measure_payload(run, group)
    if payload < _MIN_BYTES:
        raise RunFolderError(
            f"{run.folder}: the spans do not record how many bytes the collectives carried, so"
            " changed links cannot be replayed"
        )
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
    """Return the factor on the transfer at each barrier with changed links, [E + 1].

    Each all-reduce is computed twice from the measured arrivals, over the links as they were and
    over the changed links. A temporary slowness remains: the links between the tiers that a cause
    names keep the rate that they had during the cause, unless the cause is removed.

    Args:
        ring: ring of the run.
        run: source of the hosts.
        timeline: barriers of the run.
        causes: causes that were found.
        without: positions of the causes that are removed.
        changes: changes of links.

    Raises:
        InputError: a change names no host or tier of the run.
        RunFolderError: transfers were temporarily slow, and the cause names no link.
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
    # Other collectives, such as those of BatchNorm's buffers, keep their transfers.
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
    """Return the changed over the original duration of all-reduces, [len(barriers)].

    A duration counts from the last arrival until all ranks finish.
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
    """Return a link after the changes; a link that a cause slows down keeps its reduced rate."""
    hop = usual.with_changes(changes, tiers)
    return (
        replace(hop, rate_mbps=min(hop.rate_mbps, now.rate_mbps))
        if now.rate_mbps < usual.rate_mbps
        else hop
    )


def slow_down_ring(
    ring: AllReduceRing, cause: Cause, run: RunData, tiers: dict[str, str]
) -> list[NetworkHop]:
    """Return the links of the ring during a cause.

    The links between the tiers that the cause names get the rate that produces the cause's
    slowdown.
    """
    if cause.link is None:
        raise RunFolderError(
            f"{run.folder}: transfers were slow from step {cause.first} to {cause.last}, and the"
            " slow link is unknown — remove that cause as well"
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
            f"{run.folder}: the run has no collective, so changed links have no effect on it"
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
