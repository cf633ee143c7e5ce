"""Operations as a run: compute and collectives on each worker's main lane, what is between stages
beside it.

A group is a collective among those who are part of it: all workers with one stage (data parallel),
the first and the last stage of one data-parallel rank (embedding), or all (the norm of the
gradients). Sends and receives between stages run beside the work of both and are not replayed; a
trace that has them is analysed without costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from laggard.analysis.columns import BoolArray, FloatArray, IntArray
from laggard.analysis.formats.imported import NS_PER_S, RankStep, imported_run, rank_host
from laggard.analysis.formats.main_lane import Busy, Piece, held_up, lay_out
from laggard.analysis.formats.operations import (
    COMMUNICATES,
    DATA_PARALLEL,
    STAGE_LINKS,
    Operations,
    OpType,
)
from laggard.analysis.load import Run
from laggard.run_schema import Origin
from laggard.span_schema import NO_GROUP, Flag, Lane, Phase

PHASES: Mapping[OpType, Phase] = {
    OpType.FORWARD: Phase.FORWARD,
    OpType.BACKWARD: Phase.BACKWARD,
    OpType.OPTIMIZER: Phase.OPTIMIZER,
    OpType.GC: Phase.OTHER,
} | dict.fromkeys(COMMUNICATES, Phase.COMM)
_OPTYPES = tuple(OpType)


@dataclass(frozen=True)
class Laid:
    """Starts and ends on one clock, in nanoseconds, [N]; `end_to_end` where steps had to be laid
    behind each other.
    """

    start_ns: IntArray
    end_ns: IntArray
    end_to_end: bool


def run_of_operations(operations: Operations, path: Path) -> Run:
    """The run that operations are of.

    Args:
        operations: checked already (`bytedance.read_operations`).
        path: where they were read from.

    Returns:
        A run; its rank n is the worker with the n-th smallest rank.
    """
    laid = lay_steps(operations)
    ranks, rank = np.unique(operations.rank, return_inverse=True)
    group = _groups(operations)
    steps = tuple(
        _rank_step(operations, laid, rows, group, int(rank[rows[0]]))
        for rows in _rank_steps(operations)
    )
    first = [int(np.flatnonzero(rank == n)[0]) for n in range(len(ranks))]
    hosts = tuple(
        rank_host(
            n,
            _worker_name(int(ranks[n]), int(operations.stage[row]), operations),
            tier=f"stage {operations.stage[row]}" if operations.pipelined else "",
            device_class="worker",
        )
        for n, row in enumerate(first)
    )
    origin = Origin(
        format="bytedance",
        path=path.name,
        notes=_notes(operations, laid),
        replayable=not operations.pipelined,
    )
    told = f"{operations.dp_rank.max() + 1}-way data parallel"
    told += f", {operations.stage.max() + 1} pipeline stages" if operations.pipelined else ""
    return imported_run(path, origin, steps, hosts, told)


def lay_steps(operations: Operations) -> Laid:
    """One clock for all steps: as recorded where it goes on from each step to the next, else each
    step behind the one before.

    Published traces hold steps sampled over days, and each begins at zero.
    """
    start_ns, end_ns = _nanoseconds(operations.start_s), _nanoseconds(operations.end_s)
    steps, index = np.unique(operations.step, return_inverse=True)
    first, last = np.full(len(steps), np.iinfo(np.int64).max), np.zeros(len(steps), dtype=np.int64)
    np.minimum.at(first, index, start_ns)
    np.maximum.at(last, index, end_ns)
    if (np.diff(steps) == 1).all() and (np.diff(first) > 0).all():
        return Laid(start_ns, end_ns, end_to_end=False)
    shift = np.concatenate([[0], np.cumsum(last - first)[:-1]]) - first
    return Laid(start_ns + shift[index], end_ns + shift[index], end_to_end=True)


def _nanoseconds(seconds: FloatArray) -> IntArray:
    return np.rint(seconds * NS_PER_S).astype(np.int64)


def _worker_name(rank: int, stage: int, operations: Operations) -> str:
    return f"worker-{rank}-stage-{stage}" if operations.pipelined else f"worker-{rank}"


def _rank_steps(operations: Operations) -> tuple[IntArray, ...]:
    """Row numbers of every rank's every step; operations are in order."""
    new = (np.diff(operations.step) != 0) | (np.diff(operations.rank) != 0)
    return tuple(np.split(np.arange(len(operations)), np.flatnonzero(new) + 1))


def _groups(operations: Operations) -> IntArray:
    """The collective that each row is part of, alike in every step, [N]; none where a worker is
    alone in it or it never takes any time.
    """
    dp = np.where(operations.of(OpType.EMBEDDING_ALL_REDUCE), operations.dp_rank, -1)
    stage = np.where(operations.of(*DATA_PARALLEL), operations.stage, -1)
    meets = np.flatnonzero(operations.of(*DATA_PARALLEL, OpType.EMBEDDING_ALL_REDUCE, OpType.CLIP))
    keys = np.column_stack([operations.optype, operations.seq_id, dp, stage])[meets]
    unique, index = np.unique(keys, axis=0, return_inverse=True)
    number = index.ravel()
    pairs = np.unique(np.column_stack([number, operations.rank[meets]]), axis=0)
    members = np.bincount(pairs[:, 0], minlength=len(unique))
    longest = np.zeros(len(unique))
    np.maximum.at(longest, number, operations.duration_s[meets])
    group = np.full(len(operations), NO_GROUP, dtype=np.int64)
    group[meets] = np.where(((members > 1) & (longest > 0))[number], number, NO_GROUP)
    return group


def _rank_step(
    operations: Operations, laid: Laid, rows: IntArray, group: IntArray, rank: int
) -> RankStep:
    here = operations.where(rows)
    links, talks = here.of(*STAGE_LINKS), here.of(*COMMUNICATES)
    pieces = [
        Piece(
            PHASES[_OPTYPES[code]],
            start,
            end,
            group=number,
            lane=Lane.BESIDE if beside else Lane.MAIN,
            flags=Flag.ASYNC if beside else Flag.NONE,
        )
        for code, start, end, number, beside in zip(
            here.optype.tolist(),
            laid.start_ns[rows].tolist(),
            laid.end_ns[rows].tolist(),
            group[rows].tolist(),
            links.tolist(),
            strict=True,
        )
    ]
    work = [piece for piece, talk in zip(pieces, talks.tolist(), strict=True) if not talk]
    meetings = _held_up(
        pieces, talks & ~links, Busy.of(laid.start_ns[rows][~talks], laid.end_ns[rows][~talks])
    )
    main = lay_out(work, (piece for piece in meetings if piece.lane == Lane.MAIN))
    beside = [piece for piece in (*pieces, *meetings) if piece.lane != Lane.MAIN]
    window = int(laid.start_ns[rows].min()), int(laid.end_ns[rows].max())
    return RankStep(int(here.step[0]), rank, *window, (*main, *beside))


def _held_up(pieces: list[Piece], collective: BoolArray, busy: Busy) -> tuple[Piece, ...]:
    real = (piece for piece, meets in zip(pieces, collective.tolist(), strict=True) if meets)
    kept = (piece for piece in real if piece.end_ns > piece.start_ns or piece.group != NO_GROUP)
    return tuple(part for piece in kept for part in held_up(piece, busy))


def _notes(operations: Operations, laid: Laid) -> tuple[str, ...]:
    told = []
    if laid.end_to_end:
        told.append(
            "The steps of this trace were sampled, or begin at zero each: they are laid behind each"
            " other, in the order of their numbers."
        )
    if operations.pipelined:
        told.append(
            f"The model is split into {int(operations.stage.max()) + 1} pipeline stages. The replay"
            " does not know sends and receives between stages, so what slow workers cost is not"
            " computed here; the bytedance reference (laggard analyze --reference bytedance) has"
            " their dependencies."
        )
    told.append(
        "The format has no operation for fetching and preparing samples: such time is among what no"
        " span tells."
    )
    return tuple(told)
