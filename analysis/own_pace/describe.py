"""Where the time of ranks of their own pace went, from spans as they are: communication that carries nothing is waiting."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from laggard.analysis.columns import BoolArray, FloatArray, IntArray, SpanColumns
from laggard.analysis.findings import Analysis
from laggard.analysis.load import Run
from laggard.analysis.reference import COMPUTE_CODES
from laggard.analysis.time_split import Places, TimeSplit, places_of
from laggard.errors import RunFolderError
from laggard.span_schema import Flag, Lane, Phase

_S = 1e-9


def describe_own_pace(run: Run) -> Analysis:
    """What can be said of a run whose ranks had each a pace of its own.

    Returns:
        An analysis without findings and without costs; its n-th steps are every rank's own n-th, as far as all have come.

    Raises:
        RunFolderError: no rank finished a step.
    """
    whole = (run.spans.flags & Flag.TRUNCATED) == 0
    spans = run.spans.where(whole & (run.spans.lane == Lane.MAIN) & (run.spans.start_ns >= 0))
    nth, counts = _own_count(spans, run.world_size)
    if not counts.any():
        raise RunFolderError(f"{run.folder}: no rank finished a training step; there is nothing to analyse")
    split = _split(spans, run.world_size, places_of(run), _away(run))
    steps = int(counts[counts > 0].min())
    inside = nth < steps

    def table(chosen: BoolArray) -> FloatArray:
        values = np.zeros((steps, run.world_size))
        rows = chosen & inside
        np.add.at(values, (nth[rows], spans.rank[rows]), spans.dur_ns[rows] * _S)
        return values

    communicates, waits = spans.phase == Phase.COMM.code, _waits(spans)
    compute = table(np.isin(spans.phase, COMPUTE_CODES))
    usual = np.median(compute, axis=0)
    end_s = float(spans.end_ns.max() * _S)
    return Analysis(
        findings=(),
        hosts=run.hosts,
        steps=np.arange(steps),
        step_s=table(np.ones(len(spans), dtype=np.bool_)),
        compute_s=compute,
        wait_s=table(waits),
        transfer_s=table(communicates & ~waits),
        slowdown=compute / max(float(usual[usual > 0].min(initial=np.inf)), 1e-9),
        transfer_slowdown=np.ones(steps),
        time_split=split,
        makespan_s=end_s,
        outside_clock_s=0.0,
        replayed_s=end_s,
        without_causes_s=end_s,
        modelled_s=end_s,
        notes=(),
        costed=False,
        common_steps=False,
    )


def _waits(spans: SpanColumns) -> BoolArray:
    waits: BoolArray = (spans.phase == Phase.COMM.code) & (spans.bytes == 0)
    return waits


def _own_count(spans: SpanColumns, world: int) -> tuple[IntArray, IntArray]:
    """Which of its rank's own steps each span is part of, from 0, [N]; and how many steps each rank took, [W]."""
    nth, counts = np.zeros(len(spans), dtype=np.int64), np.zeros(world, dtype=np.int64)
    for rank in range(world):
        own = spans.rank == rank
        numbers, index = np.unique(spans.step[own], return_inverse=True)
        nth[own], counts[rank] = index, len(numbers)
    return nth, counts


def _away(run: Run) -> frozenset[int]:
    """The ranks that left and have not come back."""
    last = {} if run.record is None else {each.rank: each.kind for each in run.record.churn}
    return frozenset(rank for rank, kind in last.items() if kind == "left")


def _split(spans: SpanColumns, world: int, places: Places, away: Collection[int] = ()) -> TimeSplit:
    """Every rank's time to the end of the run; one that ended before is idle until then, unless it is away, which is `other`."""

    def total(chosen: BoolArray) -> FloatArray:
        sums: FloatArray = np.bincount(spans.rank[chosen], weights=spans.dur_ns[chosen] * _S, minlength=world).astype(
            np.float64
        )
        return sums

    end = np.zeros(world)
    np.maximum.at(end, spans.rank, spans.end_ns * _S)
    waits = _waits(spans)
    fetch, prep = (total(spans.phase == phase.code) for phase in (Phase.FETCH, Phase.PREP))
    compute = total(np.isin(spans.phase, COMPUTE_CODES)) - prep
    sends, crossing = (spans.phase == Phase.COMM.code) & ~waits, places.across(spans.rank, spans.peer)
    interconnect, network = total(sends & ~crossing), total(sends & crossing)
    stays = np.array([rank not in away for rank in range(world)])
    wait, idle = total(waits), np.where(stays, end.max() - end, 0.0)
    other = end.max() - (fetch + prep + compute + interconnect + network + wait + idle)
    return TimeSplit(fetch, prep, compute, interconnect, network, wait, idle, other, np.zeros(world))
