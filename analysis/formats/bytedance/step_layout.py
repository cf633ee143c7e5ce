"""Times of operations on one clock, and the resolution of their clocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laggard.analysis.formats.bytedance.operations import COMPUTE_TYPES, Operations
from laggard.analysis.formats.import_run.imported_run import NS_PER_S
from laggard.analysis.formats.import_run.main_lane import (
    MAX_RESOLUTION_NS,
    measure_resolution_ns,
)
from laggard.analysis.tables.columns import FloatArray, IntArray


@dataclass(frozen=True)
class StepLayout:
    """Starts and ends on one clock, in nanoseconds, [N].

    `concatenated` is true if steps had to be placed one after the other.
    """

    start_ns: IntArray
    end_ns: IntArray
    concatenated: bool


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


def find_resolution_ns(operations: Operations, layout: StepLayout) -> int:
    """Return the resolution of the clocks.

    Computations of a worker cannot overlap, so the resolution is at least their longest overlap.
    """
    rows = np.flatnonzero(operations.mask_types(*COMPUTE_TYPES))
    start_ns, end_ns = layout.start_ns[rows], layout.end_ns[rows]
    worker = np.stack([operations.step[rows], operations.rank[rows]])
    same = (np.diff(worker, axis=1) == 0).all(axis=0)
    overlap = (end_ns[:-1] - start_ns[1:])[same]
    longest = min(int(overlap.max(initial=0)), MAX_RESOLUTION_NS)
    return max(longest, measure_resolution_ns(operations.start_s))
