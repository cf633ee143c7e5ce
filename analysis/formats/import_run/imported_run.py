"""Construction of a run from another tool's spans; tables that only Laggard records stay empty."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from laggard.analysis.formats.import_run.main_lane import TraceSpan
from laggard.analysis.tables.columns import IntArray, SpanColumns, StepColumns
from laggard.analysis.tables.load_run import RankHost, RunData, create_empty_links
from laggard.core.run_schema import RunRecord, StrategyRecord, TraceOrigin

NS_PER_S = 1_000_000_000


@dataclass(frozen=True)
class RankStep:
    """Spans of one rank in one step, with the rank's own window of the step in nanoseconds."""

    step: int
    rank: int
    start_ns: int
    end_ns: int
    spans: tuple[TraceSpan, ...]


def build_imported_run(
    path: Path,
    origin: TraceOrigin,
    steps: Sequence[RankStep],
    hosts: tuple[RankHost, ...],
    told: str,
) -> RunData:
    """Build a run from imported steps.

    Args:
        path: file or folder of the trace.
        origin: origin of the trace, for the run's record.
        steps: every step of every rank, on one clock with any zero.
        hosts: host of each rank.
        told: short description of the training.

    Returns:
        A run whose clock begins with its first step.
    """
    zero_ns = min((step.start_ns for step in steps), default=0)
    name = derive_run_name(path)
    record = RunRecord(
        id=f"{name}-{origin.format}",
        scenario=name,
        status="done",
        command=(),
        seed=0,
        strategy=StrategyRecord(name=told, sync_mode="lockstep", description=told),
        versions={},
        git=None,
        testbed=f"imported ({origin.format})",
        hosts=(),
        started="",
        origin=origin,
    )
    return RunData(
        path,
        record,
        hosts,
        _build_span_columns(steps, zero_ns),
        _build_step_columns(steps, zero_ns),
        create_empty_links(),
        (),
    )


def derive_run_name(path: Path) -> str:
    """Return the name of a run: that of a file without its suffixes, or of a folder."""
    stem = path.resolve().name
    for ending in (".gz", ".json", ".parquet", ".trace", ".pt"):
        stem = stem.removesuffix(ending)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip(".-") or "trace"


def build_rank_host(
    rank: int,
    host: str,
    tier: str = "",
    device_class: str = "",
    offset_ns: int = 0,
    error_ns: int = 0,
) -> RankHost:
    """Build the host of a rank about which nothing more is known."""
    return RankHost(rank, host, "", tier, device_class, 1.0, offset_ns, error_ns)


def _build_span_columns(steps: Sequence[RankStep], zero_ns: int) -> SpanColumns:
    rows = [(step, seq, span) for step in steps for seq, span in enumerate(step.spans)]
    values: Mapping[str, list[int]] = {
        "step": [step.step for step, _, _ in rows],
        "rank": [step.rank for step, _, _ in rows],
        "lane": [int(span.lane) for _, _, span in rows],
        "phase": [span.phase.code for _, _, span in rows],
        # The column has 16 bits; later spans of a very long step share the last number.
        "seq": [min(seq, np.iinfo(np.int16).max) for _, seq, _ in rows],
        "start_ns": [span.start_ns - zero_ns for _, _, span in rows],
        "dur_ns": [span.end_ns - span.start_ns for _, _, span in rows],
        "group": [span.group for _, _, span in rows],
        "peer": [span.peer for _, _, span in rows],
        "bytes": [span.bytes for _, _, span in rows],
        "work": [0] * len(rows),
        "flags": [int(span.flags) for _, _, span in rows],
    }
    columns = SpanColumns(**{f.name: _to_column(values[f.name]) for f in fields(SpanColumns)})
    return columns.where(np.lexsort((columns.seq, columns.start_ns, columns.rank, columns.step)))


def _build_step_columns(steps: Sequence[RankStep], zero_ns: int) -> StepColumns:
    ordered = sorted(steps, key=lambda step: (step.step, step.rank))
    none, zeros = np.full(len(ordered), -1, dtype=np.int64), np.zeros(len(ordered), dtype=np.int64)
    return StepColumns(
        step=_to_column([step.step for step in ordered]),
        rank=_to_column([step.rank for step in ordered]),
        start_ns=_to_column([step.start_ns - zero_ns for step in ordered]),
        end_ns=_to_column([step.end_ns - zero_ns for step in ordered]),
        loss=np.full(len(ordered), np.nan),
        accuracy=np.full(len(ordered), np.nan),
        samples=zeros,
        batch_size=zeros,
        staleness=zeros,
        dropped=zeros,
        skipped=zeros,
        read_version=none,
        applied_version=none,
        waited_for=none,
    )


def _to_column(values: Sequence[int]) -> IntArray:
    return np.array(values, dtype=np.int64)
