"""Numbers of a whole analysis and of each rank, as one JSON document.

The scores are those of NVIDIA's resiliency extension (NVRx): a rank's speed relative to the fastest
ranks, and relative to the best that it reached itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from laggard.analysis.detection.intervals import MIN_STEPS, running_median
from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.findings.federated_result import (
    build_federated_document,
    find_federated_result,
)
from laggard.analysis.findings.stream_result import build_stream_document
from laggard.analysis.findings.token_result import build_token_document, summarize_ledger
from laggard.analysis.tables.columns import FloatArray, IntArray
from laggard.analysis.tables.load_run import RunData
from laggard.core.files.input_files import JsonDocument
from laggard.core.span_schema import Lane, Phase

RankValues = Mapping[str, float | int | str | None]


def build_summary(run: RunData, analysis: AnalysisResult) -> dict[str, JsonDocument]:
    """Return the numbers of an analysis for programs; times are in seconds.

    Args:
        run: the run.
        analysis: its analysis.

    Returns:
        `makespan_s`, `lost_s`, `unexplained_s`, `unexplained_wait_s`, `reliable`, `steps`, `stream`
        (`build_stream_document`), `federated` (`build_federated_document`), `tokens`
        (`build_token_document`), and `ranks`, one object per rank. Values that an analysis does not
        have are None.
    """
    return {
        "makespan_s": analysis.makespan_s,
        "lost_s": max(analysis.lost_s, 0.0) if analysis.costed else None,
        "unexplained_s": analysis.unexplained_s if analysis.costed else None,
        "unexplained_wait_s": analysis.unexplained_wait_s,
        "reliable": analysis.costed and analysis.is_reliable,
        "steps": len(analysis.steps),
        "stream": build_stream_document(run.stream_tasks),
        "federated": build_federated_document(find_federated_result(run)),
        "tokens": build_token_document(summarize_ledger(run.ledger, run.world_size)),
        "ranks": [dict(values) for values in summarize_ranks(run, analysis)],
    }


def summarize_ranks(run: RunData, analysis: AnalysisResult) -> Sequence[RankValues]:
    """Return the time split, waits, overlap and scores of every rank, in rank order."""
    split = analysis.time_split.parts
    communicated_s, overlapped_s = run.memoize(_measure_overlap)
    waits = analysis.observed_waits
    summaries: list[RankValues] = []
    for rank, host in enumerate(analysis.hosts):
        relative, individual = _compute_scores(analysis, rank)
        summaries.append(
            {
                "rank": rank,
                "host": host.host,
                **{f"{name}_s": float(values[rank]) for name, values in split.items()},
                "mean_wait_s": float(split["wait"][rank]) / max(len(analysis.steps), 1),
                "times_last": None if waits is None else int(waits.times_last[rank]),
                "caused_wait_s": None if waits is None else float(waits.caused_s[rank]),
                "communicated_s": float(communicated_s[rank]),
                "overlapped_s": float(overlapped_s[rank]),
                "relative_score": relative,
                "individual_score": individual,
            }
        )
    return summaries


def _compute_scores(analysis: AnalysisResult, rank: int) -> tuple[float | None, float | None]:
    """Return a rank's speed relative to the fastest ranks, and to its own best, at its end."""
    slowdown = analysis.slowdown[:, rank]
    slowdown = slowdown[np.isfinite(slowdown) & (slowdown > 0)]
    if not len(slowdown):
        return None, None
    smooth = running_median(slowdown) if len(slowdown) >= MIN_STEPS else slowdown
    recent = float(np.median(slowdown[-MIN_STEPS:]))
    return 1.0 / float(np.median(slowdown)), min(float(smooth.min()) / recent, 1.0)


def _measure_overlap(run: RunData) -> tuple[FloatArray, FloatArray]:
    """Return each rank's seconds with communication, and those in which it computed meanwhile."""
    communicated, exposed = np.zeros(run.world_size), np.zeros(run.world_size)
    for spans in run.spans.parts():
        rows = np.flatnonzero((spans.phase == Phase.COMM.code) & (spans.start_ns >= 0))
        rank, start_ns, dur_ns = spans.rank[rows], spans.start_ns[rows], spans.dur_ns[rows]
        blocking = spans.lane[rows] == Lane.MAIN
        exposed += np.bincount(rank[blocking], dur_ns[blocking] * 1e-9, run.world_size)
        communicated += _sum_union_ns(rank, start_ns, dur_ns, run.world_size) * 1e-9
    return communicated, np.maximum(communicated - exposed, 0.0)


def _sum_union_ns(rank: IntArray, start_ns: IntArray, dur_ns: IntArray, world: int) -> IntArray:
    """Return the nanoseconds that the spans of each rank cover together, [W]; they may overlap."""
    union_ns = np.zeros(world, dtype=np.int64)
    order = np.lexsort((start_ns, rank))
    rank, start_ns, end_ns = rank[order], start_ns[order], (start_ns + dur_ns)[order]
    firsts = np.flatnonzero(np.diff(rank, prepend=-1))
    for first, last in zip(firsts, np.append(firsts, len(rank))[1:], strict=True):
        starts, ends = start_ns[first:last], np.maximum.accumulate(end_ns[first:last])
        before = np.concatenate([starts[:1], ends[:-1]])
        union_ns[rank[first]] = np.maximum(ends - np.maximum(starts, before), 0).sum()
    return union_ns
