"""Conversion of operations to a run: compute and collectives on each worker's main lane.

A group is a collective among its members: all workers of one stage (data parallel), the first and
the last stage of one data-parallel rank (embedding), or all workers (norm of the gradients). A send
between stages is a post on the main lane at its start, since it blocks no worker. Its receive waits
for it. Both keep their times on a background lane. Stages of several chunks are analyzed without
costs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from laggard.analysis.formats.bytedance.hidden_barriers import (
    HiddenBarrier,
    find_hidden_barriers,
)
from laggard.analysis.formats.bytedance.operations import (
    COMMUNICATION_TYPES,
    DATA_PARALLEL_TYPES,
    PIPELINE_TRANSFER_TYPES,
    RECEIVES,
    Operations,
    OpType,
)
from laggard.analysis.formats.bytedance.step_layout import (
    StepLayout,
    align_steps,
    find_resolution_ns,
)
from laggard.analysis.formats.import_run.imported_run import (
    RankStep,
    build_imported_run,
    build_rank_host,
)
from laggard.analysis.formats.import_run.main_lane import (
    BusyTimes,
    TraceSpan,
    build_main_lane,
    split_exposed,
    to_post,
    to_receipt,
)
from laggard.analysis.tables.columns import BoolArray, IntArray
from laggard.analysis.tables.load_run import RunData
from laggard.core.run_schema import TraceOrigin
from laggard.core.span_schema import NO_GROUP, Flag, Lane, Phase
from laggard.core.text.text_format import format_list

PHASE_BY_OPTYPE: Mapping[OpType, Phase] = {
    OpType.FORWARD: Phase.FORWARD,
    OpType.BACKWARD: Phase.BACKWARD,
    OpType.OPTIMIZER: Phase.OPTIMIZER,
    OpType.GC: Phase.OTHER,
} | dict.fromkeys(COMMUNICATION_TYPES, Phase.COMM)
_OPTYPES = tuple(OpType)


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
    group = np.where(group >= 0, group, _assign_messages(operations, int(group.max()) + 1))
    resolution_ns = find_resolution_ns(operations, layout)
    barriers = find_hidden_barriers(operations, layout, resolution_ns)
    hidden = _list_hidden_waits(barriers, int(group.max()) + 1)
    steps = tuple(
        _build_rank_step(
            operations,
            layout,
            rows,
            group,
            int(rank[rows[0]]),
            resolution_ns,
            hidden.get((int(operations.step[rows[0]]), int(operations.rank[rows[0]])), ()),
        )
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
        notes=_list_import_notes(operations, layout, barriers),
        replayable=not operations.is_interleaved,
        stages=tuple(int(operations.stage[row]) for row in first)
        if operations.is_pipelined
        else (),
    )
    details = f"{operations.dp_rank.max() + 1}-way data parallel"
    details += f", {operations.stage.max() + 1} pipeline stages" if operations.is_pipelined else ""
    return build_imported_run(path, origin, steps, hosts, details)


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


def _assign_messages(operations: Operations, first: int) -> IntArray:
    """Return the number of each send, and that number plus 1 for its receive, equal in every step.

    Args:
        operations: operations that have been checked.
        first: least number.

    Returns:
        Numbers, [N]; `NO_GROUP` for other operations, and where the other end is missing.
    """
    group = np.full(len(operations), NO_GROUP, dtype=np.int64)
    keys, is_send = [], []
    for send, (receive, towards) in RECEIVES.items():
        for optype, stage in (
            (send, operations.stage),
            (receive, operations.stage - towards),
        ):
            rows = np.flatnonzero(operations.mask_types(optype))
            ends = (operations.dp_rank, stage, operations.seq_id, operations.step)
            columns = [np.full(len(rows), send.code), *(column[rows] for column in ends), rows]
            keys.append(np.column_stack(columns))
            is_send.append(np.full(len(rows), optype is send))
    table, sends = np.concatenate(keys), np.concatenate(is_send)
    _, message, counts = np.unique(table[:, :-1], axis=0, return_inverse=True, return_counts=True)
    matched = counts[message.ravel()] == 2  # operations of one type have different numbers
    _, number = np.unique(table[:, :-2], axis=0, return_inverse=True)
    group[table[matched, -1]] = first + 2 * number.ravel()[matched] + ~sends[matched]
    return group


def _build_rank_step(
    operations: Operations,
    layout: StepLayout,
    rows: IntArray,
    group: IntArray,
    rank: int,
    resolution_ns: int,
    hidden: Sequence[TraceSpan],
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
    busy = BusyTimes.from_intervals(
        layout.start_ns[rows][~communicates],
        layout.end_ns[rows][~communicates],
        resolution_ns,
    )
    waits = _split_exposed_collectives(spans, communicates & ~links, busy)
    messages = _build_messages(spans, here.optype.tolist(), work)
    main = build_main_lane(
        work, (*messages, *hidden, *(span for span in waits if span.lane == Lane.MAIN))
    )
    background = [span for span in (*spans, *waits) if span.lane != Lane.MAIN]
    window = int(layout.start_ns[rows].min()), int(layout.end_ns[rows].max())
    return RankStep(int(here.step[0]), rank, *window, (*main, *background))


def _build_messages(
    spans: Sequence[TraceSpan], codes: Sequence[int], work: Sequence[TraceSpan]
) -> tuple[TraceSpan, ...]:
    """Return the sends and receives of a worker as they block its main lane.

    The k-th receive is needed by the k-th computation of its direction. If their numbers differ, it
    is needed from its end on.

    Args:
        spans: all operations.
        codes: their types.
        work: operations that are work, in order.
    """
    posts: list[TraceSpan] = []
    received: dict[Phase, list[TraceSpan]] = {Phase.FORWARD: [], Phase.BACKWARD: []}
    for span, code in zip(spans, codes, strict=True):
        if span.lane == Lane.MAIN or span.group == NO_GROUP:
            continue
        on_main = replace(span, lane=Lane.MAIN, flags=Flag.NONE)
        if _OPTYPES[code] in RECEIVES:
            posts.append(to_post(on_main, work))
        else:
            is_forward = _OPTYPES[code] is OpType.FORWARD_RECV
            received[Phase.FORWARD if is_forward else Phase.BACKWARD].append(on_main)
    receipts: list[TraceSpan] = []
    for phase, messages in received.items():
        needed = [place for place, span in enumerate(work) if span.phase is phase]
        for number, message in enumerate(messages):
            at = bisect_left(work, message.end_ns, key=lambda span: span.start_ns)
            if len(needed) == len(messages):
                at = needed[number]
            receipts.append(to_receipt(message, work[:at]))
    return (*posts, *receipts)


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


def _list_hidden_waits(
    barriers: Sequence[HiddenBarrier], first: int
) -> Mapping[tuple[int, int], list[TraceSpan]]:
    """Return the waits at barriers that the trace does not record, by step and rank of the job."""
    waits: dict[tuple[int, int], list[TraceSpan]] = {}
    for number, barrier in enumerate(barriers, first):
        for place, (start_ns, end_ns) in barrier.waits.items():
            span = TraceSpan(Phase.COMM, start_ns, end_ns, group=number)
            waits.setdefault(place, []).append(span)
    return waits


def _list_import_notes(
    operations: Operations, layout: StepLayout, barriers: Sequence[HiddenBarrier]
) -> tuple[str, ...]:
    details = []
    if layout.concatenated:
        details.append(
            "The steps of this trace were sampled, or each begins at zero: they are placed one"
            " after the other, in the order of their numbers."
        )
    if operations.is_pipelined:
        unknown = (
            " Its stages have several chunks each, whose order the replay does not know, so the"
            " cost of slow workers is not computed."
        )
        details.append(
            f"The model is split into {int(operations.stage.max()) + 1} pipeline stages."
            " Workers are compared with those of the same stage."
            + (unknown if operations.is_interleaved else "")
        )
    if barriers:
        stages = sorted({each.stage for each in barriers if each.stage is not None})
        who = [f"of stage {stage}" for stage in stages]
        who += ["of one replica"] * any(each.stage is None for each in barriers)
        details.append(
            f"Workers {format_list(who)} continue together after gaps, so they were taken to wait"
            " for one another there. The trace does not record such a collective."
        )
    details.append(
        "The format has no operation for fetching and preparing samples: this time is part of the"
        " time without a span."
    )
    return tuple(details)
