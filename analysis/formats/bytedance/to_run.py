"""Conversion of operations to a run: compute and collectives on each worker's main lane.

A group is a collective among its members: all workers of one stage (data parallel), the first and
the last stage of one data-parallel rank (embedding), or all workers (norm of the gradients). Sends
and receives between stages are on a background lane and are not replayed; a trace that has them is
analyzed without costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from laggard.analysis.formats.bytedance.operations import (
    COMMUNICATION_TYPES,
    DATA_PARALLEL_TYPES,
    PIPELINE_TRANSFER_TYPES,
    Operations,
    OpType,
)
from laggard.analysis.formats.import_run.imported_run import (
    NS_PER_S,
    RankStep,
    build_imported_run,
    build_rank_host,
)
from laggard.analysis.formats.import_run.main_lane import (
    BusyTimes,
    TraceSpan,
    build_main_lane,
    measure_resolution_ns,
    split_exposed,
)
from laggard.analysis.tables.columns import BoolArray, FloatArray, IntArray
from laggard.analysis.tables.load_run import RunData
from laggard.core.run_schema import TraceOrigin
from laggard.core.span_schema import NO_GROUP, Flag, Lane, Phase

PHASE_BY_OPTYPE: Mapping[OpType, Phase] = {
    OpType.FORWARD: Phase.FORWARD,
    OpType.BACKWARD: Phase.BACKWARD,
    OpType.OPTIMIZER: Phase.OPTIMIZER,
    OpType.GC: Phase.OTHER,
} | dict.fromkeys(COMMUNICATION_TYPES, Phase.COMM)
_OPTYPES = tuple(OpType)


@dataclass(frozen=True)
class StepLayout:
    """Starts and ends on one clock, in nanoseconds, [N].

    `concatenated` is true if steps had to be placed one after the other.
    """

    start_ns: IntArray
    end_ns: IntArray
    concatenated: bool


def operations_to_run(operations: Operations, path: Path) -> RunData:
    """Return the run that operations describe.

    Args:
        operations: operations that have been checked (`bytedance.read_operations`).
        path: file that they were read from.

    Returns:
        A run; its rank n is the worker with the n-th smallest rank.
    """
    layout = align_steps(operations)
    ranks, rank = np.unique(operations.rank, return_inverse=True)
    group = _assign_groups(operations)
    steps = tuple(
        _build_rank_step(operations, layout, rows, group, int(rank[rows[0]]))
        for rows in _split_rank_steps(operations)
    )
    first = [int(np.flatnonzero(rank == n)[0]) for n in range(len(ranks))]
    hosts = tuple(
        build_rank_host(
            n,
            _format_worker_name(int(ranks[n]), int(operations.stage[row]), operations),
            tier=f"stage {operations.stage[row]}" if operations.is_pipelined else "",
            device_class="worker",
        )
        for n, row in enumerate(first)
    )
    origin = TraceOrigin(
        format="bytedance",
        path=path.name,
        notes=_list_import_notes(operations, layout),
        replayable=not operations.is_pipelined,
    )
    details = f"{operations.dp_rank.max() + 1}-way data parallel"
    details += f", {operations.stage.max() + 1} pipeline stages" if operations.is_pipelined else ""
    return build_imported_run(path, origin, steps, hosts, details)


def align_steps(operations: Operations) -> StepLayout:
    """Put all steps on one clock.

    The recorded clock is kept if it continues from each step to the next. Otherwise each step is
    placed after the one before, because published traces contain steps sampled over days that each
    begin at zero.
    """
    start_ns, end_ns = _to_nanoseconds(operations.start_s), _to_nanoseconds(operations.end_s)
    steps, index = np.unique(operations.step, return_inverse=True)
    first, last = np.full(len(steps), np.iinfo(np.int64).max), np.zeros(len(steps), dtype=np.int64)
    np.minimum.at(first, index, start_ns)
    np.maximum.at(last, index, end_ns)
    # Consecutive step numbers with increasing starts: one clock runs through the trace.
    if (np.diff(steps) == 1).all() and (np.diff(first) > 0).all():
        return StepLayout(start_ns, end_ns, concatenated=False)
    shift = np.concatenate([[0], np.cumsum(last - first)[:-1]]) - first
    return StepLayout(start_ns + shift[index], end_ns + shift[index], concatenated=True)


def _to_nanoseconds(seconds: FloatArray) -> IntArray:
    return np.rint(seconds * NS_PER_S).astype(np.int64)


def _format_worker_name(rank: int, stage: int, operations: Operations) -> str:
    return f"worker-{rank}-stage-{stage}" if operations.is_pipelined else f"worker-{rank}"


def _split_rank_steps(operations: Operations) -> tuple[IntArray, ...]:
    """Return the row numbers of every step of every rank; operations are in order."""
    new = (np.diff(operations.step) != 0) | (np.diff(operations.rank) != 0)
    return tuple(np.split(np.arange(len(operations)), np.flatnonzero(new) + 1))


def _assign_groups(operations: Operations) -> IntArray:
    """Return the collective that each row belongs to, equal in every step, [N].

    A row has no group if its worker is the only member, or if the collective never takes any time.
    """
    dp = np.where(operations.mask_types(OpType.EMBEDDING_ALL_REDUCE), operations.dp_rank, -1)
    stage = np.where(operations.mask_types(*DATA_PARALLEL_TYPES), operations.stage, -1)
    in_collective = np.flatnonzero(
        operations.mask_types(*DATA_PARALLEL_TYPES, OpType.EMBEDDING_ALL_REDUCE, OpType.CLIP)
    )
    keys = np.column_stack([operations.optype, operations.seq_id, dp, stage])[in_collective]
    unique, index = np.unique(keys, axis=0, return_inverse=True)
    number = index.ravel()
    pairs = np.unique(np.column_stack([number, operations.rank[in_collective]]), axis=0)
    members = np.bincount(pairs[:, 0], minlength=len(unique))
    # A collective without any duration is a placeholder that ByteDance's tool requires.
    longest = np.zeros(len(unique))
    np.maximum.at(longest, number, operations.duration_s[in_collective])
    group = np.full(len(operations), NO_GROUP, dtype=np.int64)
    group[in_collective] = np.where(((members > 1) & (longest > 0))[number], number, NO_GROUP)
    return group


def _build_rank_step(
    operations: Operations, layout: StepLayout, rows: IntArray, group: IntArray, rank: int
) -> RankStep:
    here = operations.where(rows)
    links, communicates = (
        here.mask_types(*PIPELINE_TRANSFER_TYPES),
        here.mask_types(*COMMUNICATION_TYPES),
    )
    spans = [
        TraceSpan(
            PHASE_BY_OPTYPE[_OPTYPES[code]],
            start,
            end,
            group=number,
            lane=Lane.BACKGROUND if background else Lane.MAIN,
            flags=Flag.ASYNC if background else Flag.NONE,
        )
        for code, start, end, number, background in zip(
            here.optype.tolist(),
            layout.start_ns[rows].tolist(),
            layout.end_ns[rows].tolist(),
            group[rows].tolist(),
            links.tolist(),
            strict=True,
        )
    ]
    work = [span for span, talk in zip(spans, communicates.tolist(), strict=True) if not talk]
    waits = _split_exposed_collectives(
        spans,
        communicates & ~links,
        BusyTimes.from_intervals(
            layout.start_ns[rows][~communicates],
            layout.end_ns[rows][~communicates],
            measure_resolution_ns(here.start_s),
        ),
    )
    main = build_main_lane(work, (span for span in waits if span.lane == Lane.MAIN))
    background = [span for span in (*spans, *waits) if span.lane != Lane.MAIN]
    window = int(layout.start_ns[rows].min()), int(layout.end_ns[rows].max())
    return RankStep(int(here.step[0]), rank, *window, (*main, *background))


def _split_exposed_collectives(
    spans: list[TraceSpan], collective: BoolArray, busy: BusyTimes
) -> tuple[TraceSpan, ...]:
    real = (
        span
        for span, in_collective in zip(spans, collective.tolist(), strict=True)
        if in_collective
    )
    kept = (span for span in real if span.end_ns > span.start_ns or span.group != NO_GROUP)
    return tuple(part for span in kept for part in split_exposed(span, busy))


def _list_import_notes(operations: Operations, layout: StepLayout) -> tuple[str, ...]:
    details = []
    if layout.concatenated:
        details.append(
            "The steps of this trace were sampled, or each begins at zero: they are placed one"
            " after the other, in the order of their numbers."
        )
    if operations.is_pipelined:
        details.append(
            f"The model is split into {int(operations.stage.max()) + 1} pipeline stages. The replay"
            " does not model sends and receives between stages, so the cost of slow workers is not"
            " computed here. The bytedance reference (laggard analyze --reference bytedance) models"
            " their dependencies."
        )
    details.append(
        "The format has no operation for fetching and preparing samples: this time is part of the"
        " time without a span."
    )
    return tuple(details)
