"""Division of asynchronous ranks' time into parts, taken directly from the spans.

Communication that carries no data counts as waiting.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from laggard.analysis.detection.reference import COMPUTE_CODES
from laggard.analysis.findings.analysis_result import AnalysisResult, get_origin_notes
from laggard.analysis.tables.columns import BoolArray, FloatArray, IntArray, SpanColumns
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.build_timeline import require_dense
from laggard.analysis.tables.timelines.collective_waits import compute_wait_ns
from laggard.analysis.tables.timelines.time_split import (
    TierPlacement,
    TimeSplit,
    get_tier_placement,
)
from laggard.core.errors import RunFolderError
from laggard.core.span_schema import Flag, Lane, Phase

_S = 1e-9


def describe_asynchronous(run: RunData) -> AnalysisResult:
    """Describe a run with asynchronous ranks, without findings and costs.

    Returns:
        An analysis whose step n is each rank's own n-th step. It ends with the last step number
        that every rank with steps reached.

    Raises:
        RunFolderError: no rank finished a step.
    """
    whole = (run.spans.flags & Flag.TRUNCATED) == 0
    spans = run.spans.where(whole & (run.spans.lane == Lane.MAIN) & (run.spans.start_ns >= 0))
    nth, counts = _count_own_steps(spans, run.world_size)
    if not counts.any():
        raise RunFolderError(
            f"{run.folder}: no rank finished a training step, so there is nothing to analyze; read"
            " the files in its logs folder for the reason"
        )
    wait_ns = compute_wait_ns(run, spans)
    split = _split_time(spans, wait_ns, get_tier_placement(run), _find_departed(run))
    steps = int(counts[counts > 0].min())
    inside = nth < steps
    require_dense(steps, run.world_size, len(spans))

    def table(nanoseconds: IntArray) -> FloatArray:
        """Sum nanoseconds of spans by step and rank, in seconds, [steps, W]."""
        values = np.zeros((steps, run.world_size))
        np.add.at(values, (nth[inside], spans.rank[inside]), nanoseconds[inside] * _S)
        return values

    communicates = spans.phase == Phase.COMM.code
    compute = table(np.where(np.isin(spans.phase, COMPUTE_CODES), spans.dur_ns, 0))
    usual = np.median(compute, axis=0)
    end_s = float(spans.end_ns.max() * _S)
    return AnalysisResult(
        findings=(),
        hosts=run.hosts,
        steps=np.arange(steps),
        step_s=table(spans.dur_ns),
        compute_s=compute,
        wait_s=table(wait_ns),
        transfer_s=table(np.where(communicates, spans.dur_ns - wait_ns, 0)),
        # No references are fitted here: the fastest rank's median step stands for the fleet's.
        slowdown=compute / max(float(usual[usual > 0].min(initial=np.inf)), 1e-9),
        transfer_slowdown=np.ones(steps),
        time_split=split,
        makespan_s=end_s,
        outside_clock_s=0.0,
        replayed_s=end_s,
        without_causes_s=end_s,
        modeled_s=end_s,
        notes=get_origin_notes(run),
        costed=False,
        common_steps=False,
    )


def _count_own_steps(spans: SpanColumns, world: int) -> tuple[IntArray, IntArray]:
    """Return the position of every span among its rank's own steps.

    Returns:
        The index of the span's step among its rank's steps, from 0, [N], and the number of steps
        of every rank, [W].
    """
    nth, counts = np.zeros(len(spans), dtype=np.int64), np.zeros(world, dtype=np.int64)
    for rank in range(world):
        own = spans.rank == rank
        numbers, index = np.unique(spans.step[own], return_inverse=True)
        nth[own], counts[rank] = index, len(numbers)
    return nth, counts


def _find_departed(run: RunData) -> frozenset[int]:
    """Return the ranks that left and have not joined again."""
    last = {} if run.record is None else {each.rank: each.kind for each in run.record.churn}
    return frozenset(rank for rank, kind in last.items() if kind == "left")


def _split_time(
    spans: SpanColumns, wait_ns: IntArray, places: TierPlacement, departed: Collection[int] = ()
) -> TimeSplit:
    """Divide every rank's time up to the end of the run into parts.

    A rank that ended early is idle until the end. A rank that left is not idle; its absence counts
    as `other`.
    """
    world = len(places.tiers)

    def total(chosen: BoolArray, nanoseconds: IntArray = spans.dur_ns) -> FloatArray:
        """Sum nanoseconds of the chosen spans by rank, in seconds, [W]."""
        weights = nanoseconds[chosen] * _S
        sums: FloatArray = np.bincount(spans.rank[chosen], weights=weights, minlength=world).astype(
            np.float64
        )
        return sums

    end = np.zeros(world)
    np.maximum.at(end, spans.rank, spans.end_ns * _S)
    communicates = spans.phase == Phase.COMM.code
    fetch, prep = (total(spans.phase == phase.code) for phase in (Phase.FETCH, Phase.PREP))
    compute = total(np.isin(spans.phase, COMPUTE_CODES)) - prep
    crossing, sent_ns = places.crosses_tiers(spans.rank, spans.peer), spans.dur_ns - wait_ns
    interconnect, network = (
        total(communicates & chosen, sent_ns) for chosen in (~crossing, crossing)
    )
    stays = np.array([rank not in departed for rank in range(world)])
    wait, idle = total(communicates, wait_ns), np.where(stays, end.max() - end, 0.0)
    other = end.max() - (fetch + prep + compute + interconnect + network + wait + idle)
    return TimeSplit(
        fetch, prep, compute, interconnect, network, wait, idle, other, np.zeros(world)
    )
