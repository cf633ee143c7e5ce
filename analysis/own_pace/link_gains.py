"""Messages between two hosts, had the link between them been otherwise: what each step of a rank of
its own pace would save.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laggard.analysis.columns import BoolArray, FloatArray, SpanColumns
from laggard.analysis.link_change import (
    Hop,
    LinkChange,
    hops_of_run,
    require_known,
    require_sampled,
)
from laggard.analysis.links import carried_bytes
from laggard.analysis.load import Run
from laggard.analysis.own_pace.paces import Pace
from laggard.errors import RunFolderError
from laggard.span_schema import Lane, Phase

_S = 1e-9
_LEFT = 0.02
"""Of a message's time something is left, whatever its link: it is packed, written and read."""


@dataclass(frozen=True)
class Gain:
    """Seconds off each step of a rank, [N]: before and behind its wait, and of the message that it
    waits for; negative where links are slower.
    """

    before: FloatArray
    after: FloatArray
    message: FloatArray


def link_gains(run: Run, paces: Sequence[Pace], changes: Sequence[LinkChange]) -> tuple[Gain, ...]:
    """What every rank's steps would save.

    A message takes its bytes over the link's rate, and half a round trip; one to a server takes a
    whole one, as its span ends with the server's word that it came. How many others are on the link
    at that time is left out.

    Args:
        run: with samples of its links.
        paces: of every rank.
        changes: of links.

    Raises:
        InputError: a change names no host or tier of the run.
        RunFolderError: the run does not say between whom the messages went, or has no samples of
            its links.
    """
    require_sampled(run)
    if not names_senders(run):
        raise RunFolderError(
            f"{run.folder}: no message of a worker says whom it came from, so no link's part in"
            " them is known"
        )
    spans, tiers = _messages(run), tiers_of(run)
    server = _server(run, spans)
    require_known(changes, tiers)
    hops = hops_of_run(run, tiers)
    return tuple(
        _gain(run, rank, pace, spans.where(spans.rank == rank), hops, server, changes, tiers)
        for rank, pace in enumerate(paces)
    )


def names_senders(run: Run) -> bool:
    """Whether any message that a worker waited for or took says whom it came from or went to."""
    return len(_messages(run)) > 0


def tiers_of(run: Run) -> dict[str, str]:
    """The tier of every worker's host, and of the server's."""
    tiers = {host.host: host.tier for host in run.hosts}
    server = _server(run, _messages(run))
    if server is not None:
        tiers.setdefault(
            server, run.record.strategy.server_tier or "" if run.record is not None else ""
        )
    return tiers


def _messages(run: Run) -> SpanColumns:
    spans = run.spans
    there = (
        (spans.lane == Lane.MAIN)
        & (spans.phase == Phase.COMM.code)
        & (spans.bytes > 0)
        & (spans.peer >= 0)
    )
    return spans.where(np.flatnonzero(there))


def _server(run: Run, spans: SpanColumns) -> str | None:
    """The host that a server was on: the one that received most; None where workers spoke to each
    other.
    """
    if not (spans.peer >= run.world_size).any():
        return None
    received: dict[str, float] = {}
    for (_, dst), count in carried_bytes(run.links).items():
        received[dst] = received.get(dst, 0.0) + count
    return max(received, key=lambda host: received[host])


def _gain(
    run: Run,
    rank: int,
    pace: Pace,
    spans: SpanColumns,
    hops: dict[tuple[str, str], Hop],
    server: str | None,
    changes: Sequence[LinkChange],
    tiers: dict[str, str],
) -> Gain:
    step = np.searchsorted(pace.number, spans.step)
    known: BoolArray = (step < len(pace)) & (
        pace.number[np.minimum(step, len(pace) - 1)] == spans.step
    )
    spans, step = spans.where(known), step[known]
    saved = np.zeros(len(spans))
    early = spans.start_ns * _S < pace.ready_s[step]
    own = run.hosts[rank].host
    for peer in np.unique(spans.peer).tolist():
        other = server if peer >= run.world_size else run.hosts[peer].host
        rows = spans.peer == peer
        if other is None or other == own:
            continue
        pushed = rows & early & (peer >= run.world_size)
        for chosen, ends, trips in (
            (pushed, (own, other), 1.0),
            (rows & ~pushed, (other, own), 0.5),
        ):
            if ends in hops:
                now, then = hops[ends], hops[ends].otherwise(changes, tiers)
                each = spans.bytes[chosen] * 8e-6 * (1.0 / now.rate_mbps - 1.0 / then.rate_mbps)
                saved[chosen] = each + trips * (now.rtt_ms - then.rtt_ms) * 1e-3
    saved = np.minimum(saved, (1.0 - _LEFT) * spans.dur_ns * _S)
    waited = ~early & (pace.message_s[step] > 0)
    parts = (early, ~early & ~waited, waited)
    before, after, message = (
        np.bincount(step[part], saved[part], len(pace)).astype(np.float64) for part in parts
    )
    return Gain(before, after, message)
