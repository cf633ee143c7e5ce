"""Conversion of a run to operations: its compute and its collectives.

Time for which the format has no operation becomes a gap: fetching and preparing samples, copying
them to a device, checkpoints and evaluation. A collective before the backward pass becomes
`params-all-gather`, and a later one becomes `grads-reduce-scatter`. ByteDance's tool requires some
operations in every step that Laggard does not record; they get duration 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from laggard.analysis.formats.bytedance.operations import (
    COMPUTE_TYPES,
    DATA_PARALLEL_TYPES,
    Operations,
    OpType,
)
from laggard.analysis.tables.columns import IntArray, SpanColumns
from laggard.analysis.tables.load_run import RunData
from laggard.core.errors import InputError
from laggard.core.span_schema import NO_GROUP, Flag, Lane, Phase

_S = 1e-9
_OPTYPE_BY_PHASE = {
    Phase.FORWARD: OpType.FORWARD,
    Phase.BACKWARD: OpType.BACKWARD,
    Phase.OPTIMIZER: OpType.OPTIMIZER,
}
_REQUIRED_TYPES = (OpType.GC, OpType.LAYERNORM_ALL_REDUCE, OpType.EMBEDDING_ALL_REDUCE)
_PHASES = tuple(Phase)
_OPTYPES = tuple(OpType)


@dataclass(frozen=True)
class _OperationRow:
    """Operation of one rank in one step.

    Its `slot` identifies the same operation on other ranks and in other steps. It consists of the
    number of collectives before it, its type, and its number among those of that type between the
    same two collectives.
    """

    rank: int
    step: int
    optype: OpType
    slot: tuple[int, int, int]
    start_ns: int
    end_ns: int


def run_to_operations(run: RunData) -> Operations:
    """Return the operations of a run.

    Args:
        run: run of ranks that took the same steps, and whose collectives had all ranks as members.

    Returns:
        Its operations, in the steps that every rank finished, on the run's clock.

    Raises:
        InputError: the format cannot represent such a run.
    """
    if not run.is_lockstep:
        raise _make_unsupported_error(run, "its ranks did not all take the same steps")
    whole = (run.spans.flags & Flag.TRUNCATED) == 0
    spans = run.spans.where(
        whole & (run.spans.lane == Lane.MAIN) & (run.spans.start_ns >= 0) & (run.spans.step >= 0)
    )
    # The format needs the same steps of all ranks, so later steps of faster ranks are dropped.
    last = min(
        (int(spans.step[spans.rank == rank].max(initial=-1)) for rank in range(run.world_size)),
        default=-1,
    )
    spans = spans.where(spans.step <= last)
    if not len(spans):
        raise _make_unsupported_error(run, "no step was finished by every rank")
    _check_groups(run, spans)
    rows = _fill_missing(
        [_convert_rank_step(spans.where(index)) for index in _split_rank_steps(spans)]
    )
    _check_uniform(run, rows)
    return _to_columns(rows)


def _split_rank_steps(spans: SpanColumns) -> tuple[IntArray, ...]:
    """Return the row numbers of every step of every rank, in order of time."""
    order = np.lexsort((spans.end_ns, spans.start_ns, spans.rank, spans.step))
    step, rank = spans.step[order], spans.rank[order]
    return tuple(np.split(order, np.flatnonzero((np.diff(step) != 0) | (np.diff(rank) != 0)) + 1))


def _convert_rank_step(spans: SpanColumns) -> list[_OperationRow]:
    """Return the operations of one rank in one step, whose spans are in order."""
    rank, step = int(spans.rank[0]), int(spans.step[0])
    rows: list[_OperationRow] = []
    met = 0
    counts: dict[tuple[int, OpType], int] = {}
    backward = spans.start_ns[spans.phase == Phase.BACKWARD.code]
    begins_ns = int(backward.min(initial=np.iinfo(np.int64).max))

    def add(optype: OpType, start_ns: int, end_ns: int) -> None:
        number = counts.get((met, optype), 0)
        counts[met, optype] = number + 1
        rows.append(_OperationRow(rank, step, optype, (met, optype.code, number), start_ns, end_ns))

    for code, group, start, end in zip(
        spans.phase.tolist(),
        spans.group.tolist(),
        spans.start_ns.tolist(),
        spans.end_ns.tolist(),
        strict=True,
    ):
        phase = _PHASES[code]
        if phase in _OPTYPE_BY_PHASE:
            add(_OPTYPE_BY_PHASE[phase], start, end)
        # A span of communication without a group is no collective; the format cannot hold it.
        elif phase is Phase.COMM and group != NO_GROUP:
            met += 1
            add(
                OpType.PARAMS_ALL_GATHER if start < begins_ns else OpType.GRADS_REDUCE_SCATTER,
                start,
                end,
            )
    return [*rows, *_build_required_rows(rows, met)]


def _build_required_rows(rows: Sequence[_OperationRow], met: int) -> list[_OperationRow]:
    """Return the operations that ByteDance's tool requires in every step, with duration 0.

    They follow the last backward and precede the optimizer.
    """
    if not rows:
        return []
    computes = [row.end_ns for row in rows if row.optype in COMPUTE_TYPES]
    computed_ns = max(computes, default=rows[0].start_ns)
    met_ns = max([computed_ns, *(row.end_ns for row in rows if row.optype in DATA_PARALLEL_TYPES)])
    first = rows[0]
    moments = {**dict.fromkeys(_REQUIRED_TYPES, computed_ns), OpType.CLIP: met_ns}
    if not any(row.optype is OpType.OPTIMIZER for row in rows):
        moments[OpType.OPTIMIZER] = met_ns
    return [
        _OperationRow(first.rank, first.step, optype, (met, optype.code, 0), moment, moment)
        for optype, moment in moments.items()
    ]


def _fill_missing(rank_steps: Sequence[Sequence[_OperationRow]]) -> list[_OperationRow]:
    """Add missing compute operations with duration 0, so that all ranks have the same in all steps.

    A phase that a collective interrupts is recorded in pieces, and is not split if it ends at that
    moment. An added operation follows the rank's earlier operations.
    """
    computes = {optype.code for optype in (*COMPUTE_TYPES, OpType.OPTIMIZER)}
    places = sorted({row.slot for rows in rank_steps for row in rows if row.slot[1] in computes})
    filled: list[_OperationRow] = []
    for rows in rank_steps:
        present = {row.slot for row in rows}
        filled += rows
        for place in places:
            if place not in present and rows:
                at_ns = max(
                    (row.end_ns for row in rows if row.slot < place), default=rows[0].start_ns
                )
                filled.append(
                    _OperationRow(
                        rows[0].rank, rows[0].step, _OPTYPES[place[1]], place, at_ns, at_ns
                    )
                )
    return filled


def _check_groups(run: RunData, spans: SpanColumns) -> None:
    """Raise an error unless every collective has all ranks as members."""
    collectives = spans.where((spans.phase == Phase.COMM.code) & (spans.group != NO_GROUP))
    keys, counts = np.unique(
        np.column_stack([collectives.step, collectives.group]), axis=0, return_counts=True
    )
    some = np.flatnonzero(counts < run.world_size)
    if len(some):
        step, group = keys[some[0]].tolist()
        raise _make_unsupported_error(
            run,
            f"in step {step}, {counts[some[0]]} of {run.world_size} ranks took part in collective"
            f" {group}",
        )


def _check_uniform(run: RunData, rows: Sequence[_OperationRow]) -> None:
    """Raise an error unless every rank has the same operations in every step."""
    counts: dict[tuple[int, int], dict[OpType, int]] = {}
    for row in rows:
        of_step = counts.setdefault((row.step, row.rank), {})
        of_step[row.optype] = of_step.get(row.optype, 0) + 1
    usual = next(iter(counts.values()))
    for (step, rank), own in counts.items():
        odd = next(
            (optype for optype in {**usual, **own} if own.get(optype, 0) != usual.get(optype, 0)),
            None,
        )
        if odd is not None:
            details = (
                f"rank {rank} has {own.get(odd, 0)} {odd.value} operations in step {step} and"
                f" {usual.get(odd, 0)} are expected"
            )
            raise _make_unsupported_error(run, details)


def _to_columns(rows: Sequence[_OperationRow]) -> Operations:
    numbers = _number_rows(rows)
    ranks = np.array([row.rank for row in rows])
    chunk = np.array([0 if row.optype in _CHUNKED else -1 for row in rows])
    microbatch = np.array(
        [
            number if row.optype in _MICROBATCHED else -1
            for row, number in zip(rows, numbers, strict=True)
        ]
    )
    values: Mapping[str, object] = {
        "dp_rank": ranks,
        "stage": np.zeros_like(ranks),
        "rank": ranks,
        "step": np.array([row.step for row in rows]),
        "optype": np.array([row.optype.code for row in rows]),
        "start_s": np.array([row.start_ns for row in rows]) * _S,
        "duration_s": np.array([row.end_ns - row.start_ns for row in rows]) * _S,
        "seq_id": np.array(numbers),
        "mc": chunk,
        "mb_id": microbatch,
        "gmc": np.where(microbatch >= 0, 0, -1),
    }
    columns = {f.name: values[f.name] for f in fields(Operations)}
    return Operations(**columns).to_sorted()  # type: ignore[arg-type]


def _number_rows(rows: Sequence[_OperationRow]) -> list[int]:
    """Return each operation's number among those of its type in its rank's step, in slot order."""
    places: dict[OpType, list[tuple[int, int, int]]] = {}
    for optype, place in sorted({(row.optype, row.slot) for row in rows}, key=lambda item: item[1]):
        places.setdefault(optype, []).append(place)
    numbers = {(optype, place): n for optype, own in places.items() for n, place in enumerate(own)}
    return [numbers[row.optype, row.slot] for row in rows]


_MICROBATCHED = (OpType.FORWARD, OpType.BACKWARD)
_CHUNKED = (*_MICROBATCHED, OpType.PARAMS_ALL_GATHER, OpType.GRADS_REDUCE_SCATTER)


def _make_unsupported_error(run: RunData, why: str) -> InputError:
    return InputError(
        f"{run.folder}: {why}, and ByteDance's format requires the same operations of all workers"
        " in every step — export the run as csv or perfetto"
    )
