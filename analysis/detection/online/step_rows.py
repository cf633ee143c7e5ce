"""Step rows: spans as they arrive, converted to the work of each rank in each of its steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from laggard.analysis.detection.asynchronous_causes import transfer_s
from laggard.analysis.detection.families import LOCAL_FAMILIES
from laggard.analysis.tables.columns import BoolArray, FloatArray, IntArray, SpanColumns
from laggard.analysis.tables.timelines.rank_timeline import build_rank_timeline
from laggard.core.run_schema import StragglerFamily
from laggard.core.span_schema import Flag, Lane, Phase

_S = 1e-9
_IN_FAMILY: Mapping[StragglerFamily, BoolArray] = {
    family.name: np.array([phase in family.phases for phase in Phase]) for family in LOCAL_FAMILIES
}
"""Mask of the phases of each family of local work, [P]."""


@dataclass(frozen=True)
class StepRows:
    """Work of m ranks in one step each; every rank occurs at most once.

    Attributes:
        ranks: numbers of the ranks, [m].
        step_times: number of each rank's step, its start and its end in nanoseconds, [m, 3].
        samples: samples of each rank's batch, [m].
        local_s: seconds of each rank's work, by local family, [m] each.
        transfer_s: seconds for which an asynchronous rank waited for data, [m]; 0 in lockstep.
        warm_up: mask of the steps that no reference may use, [m].
        groups: in lockstep, numbers of the step's collectives, [G].
        group_s: in lockstep, seconds of each collective after the last arrival, [G].
    """

    ranks: IntArray
    step_times: IntArray
    samples: FloatArray
    local_s: Mapping[StragglerFamily, FloatArray]
    transfer_s: FloatArray
    warm_up: BoolArray
    groups: tuple[int, ...] = ()
    group_s: tuple[float, ...] = ()


def iterate_lockstep_rows(spans: SpanColumns, world: int) -> Iterator[StepRows]:
    """Yield one entry per step, in order.

    Args:
        spans: all spans of some steps that every rank has finished.
        world: number of ranks.
    """
    spans = _select_finished_spans(spans)
    if not len(spans):
        return
    steps, at = np.unique(spans.step, return_inverse=True)
    cell = at.reshape(-1) * world + spans.rank
    shape = (len(steps), world)
    table = _build_step_table(spans, cell, shape[0] * shape[1])
    step_times = np.stack([np.repeat(steps, world), table.start_ns, table.end_ns], axis=1).reshape(
        *shape, 3
    )
    samples = table.samples.reshape(shape)
    local_s = {name: seconds.reshape(shape) for name, seconds in table.local_s.items()}
    warm_up: BoolArray = np.logical_or.reduce(table.warm_up.reshape(shape), axis=1)
    is_present = table.is_present.reshape(shape)
    groups, group_s = _measure_collectives(spans, at.reshape(-1), shape)
    nothing = np.zeros(world)
    for index in range(len(steps)):
        ranks = np.flatnonzero(is_present[index])
        has_group = group_s[index] > 0
        yield StepRows(
            ranks=ranks,
            step_times=step_times[index, ranks],
            samples=samples[index, ranks],
            local_s={name: seconds[index, ranks] for name, seconds in local_s.items()},
            transfer_s=nothing[ranks],
            warm_up=np.full(len(ranks), bool(warm_up[index])),
            groups=tuple(groups[has_group].tolist()),
            group_s=tuple(group_s[index, has_group].tolist()),
        )


def iterate_async_rows(spans: SpanColumns, world: int) -> Iterator[StepRows]:
    """Yield the steps in the order in which each rank took them, starting with all first steps.

    Args:
        spans: all spans of some steps that their ranks have finished.
        world: number of ranks.
    """
    spans = _select_finished_spans(spans)
    timelines = {
        int(rank): build_rank_timeline(spans.where(spans.rank == rank), {}, world)
        for rank in np.unique(spans.rank)
    }
    moved = {rank: transfer_s(timeline) for rank, timeline in timelines.items()}
    for index in range(max((len(timeline) for timeline in timelines.values()), default=0)):
        present_ranks = [rank for rank, timeline in timelines.items() if index < len(timeline)]
        work = np.stack(
            [timelines[rank].before[index] + timelines[rank].after[index] for rank in present_ranks]
        )
        step_times = [
            (
                timelines[r].number[index],
                timelines[r].start_s[index] / _S,
                timelines[r].end_s[index] / _S,
            )
            for r in present_ranks
        ]
        yield StepRows(
            ranks=np.array(present_ranks, dtype=np.int64),
            step_times=np.array(step_times).round().astype(np.int64),
            samples=np.array(
                [timelines[rank].taken[index] for rank in present_ranks], dtype=np.float64
            ),
            local_s={name: work[:, phases].sum(axis=1) for name, phases in _IN_FAMILY.items()},
            transfer_s=np.array([moved[rank][index] for rank in present_ranks]),
            warm_up=np.array([timelines[rank].warm_up[index] for rank in present_ranks]),
        )


def _select_finished_spans(spans: SpanColumns) -> SpanColumns:
    kept = (spans.flags & Flag.TRUNCATED) == 0
    kept &= (spans.lane == Lane.MAIN) & (spans.start_ns >= 0) & (spans.step >= 0)
    return spans.where(np.flatnonzero(kept))


@dataclass(frozen=True)
class _StepTable:
    """Measurements of all steps and ranks as flat arrays, indexed by step * ranks + rank."""

    start_ns: IntArray
    end_ns: IntArray
    samples: FloatArray
    local_s: Mapping[StragglerFamily, FloatArray]
    warm_up: BoolArray
    is_present: BoolArray


def _build_step_table(spans: SpanColumns, cell: IntArray, cells: int) -> _StepTable:
    seconds = spans.dur_ns * _S
    inside = spans.phase != Phase.EVALUATE.code
    start_ns = np.full(cells, np.iinfo(np.int64).max)
    np.minimum.at(start_ns, cell, spans.start_ns)
    end_ns, samples = np.zeros(cells, dtype=np.int64), np.zeros(cells, dtype=np.int64)
    # An evaluation is outside the clock, so it does not extend its step.
    np.maximum.at(end_ns, cell[inside], spans.end_ns[inside])
    np.maximum.at(samples, cell, spans.work)
    flagged = (spans.flags & Flag.WARM_UP) != 0
    return _StepTable(
        start_ns=start_ns,
        end_ns=end_ns,
        samples=samples.astype(np.float64),
        local_s={
            name: np.bincount(cell, seconds * phases[spans.phase], cells).astype(np.float64)
            for name, phases in _IN_FAMILY.items()
        },
        warm_up=np.bincount(cell[flagged], minlength=cells) > 0,
        is_present=np.bincount(cell, minlength=cells) > 0,
    )


def _measure_collectives(
    spans: SpanColumns, at: IntArray, shape: tuple[int, int]
) -> tuple[IntArray, FloatArray]:
    """Return the numbers of the collectives, [G], and their seconds in each step, [S, G].

    The seconds count from the last arrival. They are 0 if the step did not have the collective.
    """
    rows = np.flatnonzero((spans.phase == Phase.COMM.code) & (spans.group >= 0))
    groups, index = np.unique(spans.group[rows], return_inverse=True)
    if not len(groups):
        return groups, np.zeros((shape[0], 0))
    arrival = np.full((shape[0], len(groups), shape[1]), np.nan)
    finish = arrival.copy()
    arrival[at[rows], index.reshape(-1), spans.rank[rows]] = spans.start_ns[rows] * _S
    finish[at[rows], index.reshape(-1), spans.rank[rows]] = spans.end_ns[rows] * _S
    member = ~np.isnan(arrival)
    latest = np.where(member, arrival, -np.inf).max(axis=2, keepdims=True)
    transfer_times_s = np.where(
        # The root of a broadcast may leave before the last rank arrives; its time says nothing.
        member & (finish >= latest),
        np.maximum(finish - latest, 0.0),
        np.nan,
    )
    several = member.sum(axis=2) >= min(2, shape[1])
    known = several & ~np.isnan(transfer_times_s).all(axis=2)
    seconds = np.zeros((shape[0], len(groups)))
    seconds[known] = np.nanmedian(transfer_times_s[known], axis=1)
    return groups, seconds
