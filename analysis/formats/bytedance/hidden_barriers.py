"""Barriers that a trace does not record, between the last computation of a step and its end.

Published traces lack some collectives, such as the reduction of the loss among the workers of the
last stage. Workers then have a gap, and all of them go on when the last one has come. Without these
barriers, the gaps would count as time that the waiting workers lose themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from laggard.analysis.formats.bytedance.operations import (
    COMPUTE_TYPES,
    DATA_PARALLEL_TYPES,
    PIPELINE_TRANSFER_TYPES,
    Operations,
    OpType,
)
from laggard.analysis.formats.bytedance.step_layout import StepLayout
from laggard.analysis.tables.columns import FloatArray

_ENDING_TYPES = (
    OpType.LAYERNORM_ALL_REDUCE,
    OpType.EMBEDDING_ALL_REDUCE,
    *DATA_PARALLEL_TYPES,
    OpType.CLIP,
    OpType.OPTIMIZER,
)
_MIN_GAP_SHARE = 0.01
"""Share of a step that the longest gap must have for the step to show anything."""
_MAX_RELEASE_SHARE = 0.1
"""Largest share of the longest gap between the last arrival and the release of all workers."""
_MAX_SPREAD_SHARE = 0.05
"""Largest share of the longest gap by which the releases of most workers differ."""


@dataclass(frozen=True)
class HiddenBarrier:
    """Barrier that the trace does not record.

    Attributes:
        waits: start and end of the wait of each worker, by step and rank of the job.
        stage: stage of the workers; None for all stages of one data-parallel rank.
    """

    waits: Mapping[tuple[int, int], tuple[int, int]]
    stage: int | None


def find_hidden_barriers(
    operations: Operations, layout: StepLayout, resolution_ns: int
) -> tuple[HiddenBarrier, ...]:
    """Return the barriers among the workers of a stage, and among the stages of a worker's replica.

    Args:
        operations: operations that have been checked.
        layout: times of the operations on one clock.
        resolution_ns: resolution of the clocks.
    """
    steps = np.unique(operations.step)
    gaps = _measure_gaps(operations, layout, resolution_ns)
    replicas, stages = gaps.begins.shape[1:]
    found = []
    groups: list[tuple[int | None, tuple[slice | int, slice | int]]] = []
    groups += [(stage, (slice(None), stage)) for stage in range(stages)]
    groups += [(None, (replica, slice(None))) for replica in range(replicas)]
    for stage, (replica_of, stage_of) in groups:
        own = _Gaps(gaps.begins[:, replica_of, stage_of], gaps.ends[:, replica_of, stage_of])
        if own.begins.shape[1] < 2 or not own.show_barrier(gaps.step_ns, resolution_ns):
            continue
        ranks = gaps.ranks[replica_of, stage_of].tolist()
        waits = {}
        for row, place, until in own.list_waits(resolution_ns):
            waits[int(steps[row]), ranks[place]] = (int(own.begins[row, place]), until)
            own.begins[row, place] = until
        found.append(HiddenBarrier(waits, stage))
    return tuple(found)


@dataclass(frozen=True)
class _Gaps:
    """Gaps of workers, [steps, workers] each, in nanoseconds; NaN for workers without operations.

    A gap begins at the end of the last computation and message of a step, and ends at the start of
    the first operation that ends the step.
    """

    begins: FloatArray
    ends: FloatArray

    @property
    def release(self) -> FloatArray:
        """Return the time at which most workers go on, [steps]."""
        ends: FloatArray = np.sort(self.ends, axis=1)[:, (self.ends.shape[1] - 1) // 2]
        return ends

    def show_barrier(self, step_ns: FloatArray, resolution_ns: int) -> bool:
        """Return whether workers go on together in most steps with long gaps.

        Args:
            step_ns: duration of each step, [steps].
            resolution_ns: resolution of the clocks.
        """
        longest = self.release - self.begins.min(axis=1)
        late = self.release - self.begins.max(axis=1)
        spread = np.abs(self.ends - self.release[:, None])
        together = spread <= _MAX_SPREAD_SHARE * longest[:, None] + resolution_ns
        agrees = (late >= -resolution_ns) & (late <= _MAX_RELEASE_SHARE * longest + resolution_ns)
        agrees &= 2 * together.sum(axis=1) > self.ends.shape[1]
        is_long = longest > _MIN_GAP_SHARE * step_ns
        return bool(is_long.any()) and 2 * int(agrees[is_long].sum()) > int(is_long.sum())

    def list_waits(self, resolution_ns: int) -> Iterator[tuple[int, int, int]]:
        """Yield step, place of a worker and end of its wait, in steps that allow a barrier."""
        release = self.release
        possible = release >= self.begins.max(axis=1) - resolution_ns
        for row in np.flatnonzero(possible).tolist():
            for place in range(self.begins.shape[1]):
                until = min(max(release[row], self.begins[row, place]), self.ends[row, place])
                yield row, place, int(until)


@dataclass(frozen=True)
class _WorkerGaps:
    """Gaps of all workers, [steps, replicas, stages], their ranks, and the durations of steps."""

    begins: FloatArray
    ends: FloatArray
    ranks: FloatArray
    step_ns: FloatArray


def _measure_gaps(operations: Operations, layout: StepLayout, resolution_ns: int) -> _WorkerGaps:
    steps, step = np.unique(operations.step, return_inverse=True)
    shape = (len(steps), int(operations.dp_rank.max()) + 1, int(operations.stage.max()) + 1)
    at = (step, operations.dp_rank, operations.stage)
    begins, ends = np.full(shape, -np.inf), np.full(shape, np.inf)
    works = operations.mask_types(*COMPUTE_TYPES, *PIPELINE_TRANSFER_TYPES, OpType.GC)
    np.maximum.at(begins, tuple(each[works] for each in at), layout.end_ns[works])
    ending = operations.mask_types(*_ENDING_TYPES)
    ending &= layout.start_ns >= begins[at] - resolution_ns
    np.minimum.at(ends, tuple(each[ending] for each in at), layout.start_ns[ending])
    absent = ~(np.isfinite(begins) & np.isfinite(ends))
    begins[absent] = ends[absent] = np.nan
    first, last = np.full(len(steps), np.inf), np.full(len(steps), -np.inf)
    np.minimum.at(first, step, layout.start_ns)
    np.maximum.at(last, step, layout.end_ns)
    ranks = np.zeros(shape[1:])
    ranks[operations.dp_rank, operations.stage] = operations.rank
    return _WorkerGaps(begins, np.maximum(begins, ends), ranks, last - first)
