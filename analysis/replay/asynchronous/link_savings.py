"""Savings of each step of asynchronous ranks with changed links."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from laggard.analysis.detection.links import sum_carried_bytes
from laggard.analysis.replay.asynchronous.step_savings import StepSavings
from laggard.analysis.replay.link_model import (
    estimate_run_hops,
    require_known_ends,
    require_link_samples,
)
from laggard.analysis.tables.columns import BoolArray, SpanColumns
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.rank_timeline import RankTimeline
from laggard.core.cost_model.links import LinkChange, NetworkHop
from laggard.core.errors import RunFolderError
from laggard.core.span_schema import Lane, Phase

_S = 1e-9
_MIN_REMAINING_SHARE = 0.02
"""Share of a message's time that remains on any link, since it is still packed, written and
read."""


def compute_link_savings(
    run: RunData, rank_timelines: Sequence[RankTimeline], changes: Sequence[LinkChange]
) -> tuple[StepSavings, ...]:
    """Compute the savings of every rank's steps.

    A message takes its size divided by the link's rate, plus half a round trip. A message to a
    server takes a whole round trip, since its span ends with the server's acknowledgement. Other
    messages on the link at the same time are ignored.

    Args:
        run: run with samples of its links.
        rank_timelines: timeline of every rank.
        changes: changes of links.

    Raises:
        InputError: a change names no host or tier of the run.
        RunFolderError: the run does not record the peers of messages, or has no samples of its
            links.
    """
    require_link_samples(run)
    if not has_named_senders(run):
        raise RunFolderError(
            f"{run.folder}: no message of a worker has a recorded peer, so messages cannot be"
            " attributed to links — record the run again with the current version"
        )
    spans, tiers = _select_messages(run), map_host_tiers(run)
    server = _find_server(run, spans)
    require_known_ends(changes, tiers)
    hops = estimate_run_hops(run, tiers)
    return tuple(
        _compute_savings(
            run, rank, rank_timeline, spans.where(spans.rank == rank), hops, server, changes, tiers
        )
        for rank, rank_timeline in enumerate(rank_timelines)
    )


def has_named_senders(run: RunData) -> bool:
    """Return True if any message that a worker waited for or received has a recorded peer."""
    return len(_select_messages(run)) > 0


def map_host_tiers(run: RunData) -> dict[str, str]:
    """Return the tier of every worker's host, and of the server's."""
    tiers = {host.host: host.tier for host in run.hosts}
    server = _find_server(run, _select_messages(run))
    if server is not None:
        tiers.setdefault(
            server, run.record.strategy.server_tier or "" if run.record is not None else ""
        )
    return tiers


def _select_messages(run: RunData) -> SpanColumns:
    spans = run.spans
    is_message = (
        (spans.lane == Lane.MAIN)
        & (spans.phase == Phase.COMM.code)
        & (spans.bytes > 0)
        & (spans.peer >= 0)
    )
    return spans.where(np.flatnonzero(is_message))


def _find_server(run: RunData, spans: SpanColumns) -> str | None:
    """Return the server's host, or None if workers exchanged messages directly.

    The server is the host that received the most bytes.
    """
    if not (spans.peer >= run.world_size).any():
        return None
    received: dict[str, float] = {}
    for (_, dst), count in sum_carried_bytes(run.links).items():
        received[dst] = received.get(dst, 0.0) + count
    return max(received, key=lambda host: received[host])


def _compute_savings(
    run: RunData,
    rank: int,
    rank_timeline: RankTimeline,
    spans: SpanColumns,
    hops: dict[tuple[str, str], NetworkHop],
    server: str | None,
    changes: Sequence[LinkChange],
    tiers: dict[str, str],
) -> StepSavings:
    step = np.searchsorted(rank_timeline.number, spans.step)
    known: BoolArray = (step < len(rank_timeline)) & (
        rank_timeline.number[np.minimum(step, len(rank_timeline) - 1)] == spans.step
    )
    spans, step = spans.where(known), step[known]
    saved = np.zeros(len(spans))
    early = spans.start_ns * _S < rank_timeline.ready_s[step]
    own = run.hosts[rank].host
    for peer in np.unique(spans.peer).tolist():
        other = server if peer >= run.world_size else run.hosts[peer].host
        rows = spans.peer == peer
        if other is None or other == own:
            continue
        # A transfer before the wait with the server as its peer is a push; everything else
        # arrives.
        pushed = rows & early & (peer >= run.world_size)
        for chosen, ends, trips in (
            (pushed, (own, other), 1.0),
            (rows & ~pushed, (other, own), 0.5),
        ):
            if ends in hops:
                now, then = hops[ends], hops[ends].with_changes(changes, tiers)
                each = spans.bytes[chosen] * 8e-6 * (1.0 / now.rate_mbps - 1.0 / then.rate_mbps)
                saved[chosen] = each + trips * (now.rtt_ms - then.rtt_ms) * 1e-3
    # A faster link cannot save more than the message took.
    saved = np.minimum(saved, (1.0 - _MIN_REMAINING_SHARE) * spans.dur_ns * _S)
    waited = ~early & (rank_timeline.message_s[step] > 0)
    parts = (early, ~early & ~waited, waited)
    before, after, message = (
        np.bincount(step[part], saved[part], len(rank_timeline)).astype(np.float64)
        for part in parts
    )
    return StepSavings(rank, before, after, message)
