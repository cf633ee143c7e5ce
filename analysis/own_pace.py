"""Runs whose ranks each took steps of their own: where their time went, and who was slow; what that cost is not computed.

Under such a strategy a step of one rank has no counterpart of another's, and who waits for whom is the server's rule or the peers' choice. What
is told comes from spans as they are: communication that carries nothing is waiting.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from laggard.analysis.arrivals import latest_arrivals
from laggard.analysis.columns import BoolArray, FloatArray, IntArray, SpanColumns
from laggard.analysis.findings import Analysis, origin_notes
from laggard.analysis.load import Run
from laggard.analysis.reference import COMPUTE_CODES
from laggard.analysis.time_split import TimeSplit
from laggard.errors import RunFolderError
from laggard.run_schema import Turnover
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
    wait_ns = _wait_ns(run, spans)
    split = _split(spans, run.world_size, wait_ns, _away(run))
    steps = int(counts[counts > 0].min())
    inside = nth < steps

    def table(nanoseconds: IntArray) -> FloatArray:
        values = np.zeros((steps, run.world_size))
        np.add.at(values, (nth[inside], spans.rank[inside]), nanoseconds[inside] * _S)
        return values

    communicates = spans.phase == Phase.COMM.code
    compute = table(np.where(np.isin(spans.phase, COMPUTE_CODES), spans.dur_ns, 0))
    usual = np.median(compute, axis=0)
    end_s = float(spans.end_ns.max() * _S)
    return Analysis(
        findings=(),
        hosts=run.hosts,
        steps=np.arange(steps),
        step_s=table(spans.dur_ns),
        compute_s=compute,
        wait_s=table(wait_ns),
        transfer_s=table(np.where(communicates, spans.dur_ns - wait_ns, 0)),
        slowdown=compute / max(float(usual[usual > 0].min(initial=np.inf)), 1e-9),
        transfer_slowdown=np.ones(steps),
        time_split=split,
        makespan_s=end_s,
        outside_clock_s=0.0,
        replayed_s=end_s,
        without_causes_s=end_s,
        modelled_s=end_s,
        notes=origin_notes(run),
        costed=False,
    )


def _wait_ns(run: Run, spans: SpanColumns) -> IntArray:
    """How much of each span is waiting, [N]: communication that carries nothing, or, where another tool does not tell what is carried, the time
    before the last of a collective has come.
    """
    communicates = spans.phase == Phase.COMM.code
    if run.record is not None and run.record.origin is not None:
        waited = np.clip(latest_arrivals(spans) - spans.start_ns, 0, spans.dur_ns)
        return np.where(communicates, waited, 0)
    return np.where(communicates & (spans.bytes == 0), spans.dur_ns, 0)


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


def _split(spans: SpanColumns, world: int, wait_ns: IntArray, away: Collection[int] = ()) -> TimeSplit:
    """Every rank's time to the end of the run; one that ended before waits until then, unless it is away, which is `other`."""

    def total(chosen: BoolArray, nanoseconds: IntArray = spans.dur_ns) -> FloatArray:
        weights = nanoseconds[chosen] * _S
        sums: FloatArray = np.bincount(spans.rank[chosen], weights=weights, minlength=world).astype(np.float64)
        return sums

    end = np.zeros(world)
    np.maximum.at(end, spans.rank, spans.end_ns * _S)
    communicates = spans.phase == Phase.COMM.code
    fetch, prep = (total(spans.phase == phase.code) for phase in (Phase.FETCH, Phase.PREP))
    compute = total(np.isin(spans.phase, COMPUTE_CODES)) - prep
    transfer = total(communicates, spans.dur_ns - wait_ns)
    stays = np.array([rank not in away for rank in range(world)])
    wait = total(communicates, wait_ns) + np.where(stays, end.max() - end, 0.0)
    other = end.max() - (fetch + prep + compute + transfer + wait)
    return TimeSplit(fetch, prep, compute, transfer, wait, other, np.zeros(world))


def _turnover_sentence(run: Run, churn: Sequence[Turnover], rank: int) -> str:
    """When a rank left and joined."""
    told = " and ".join(f"{each.kind} after {each.effective_s:.1f} s" for each in churn if each.rank == rank)
    return f"{run.hosts[rank].host} (rank {rank}) {told}."


def own_pace_sentences(run: Run, analysis: Analysis) -> tuple[str, ...]:
    """Who was slow and who was waited for, in plain sentences."""
    from laggard.analysis.wording import percent_text, ratio_text

    name = run.record.strategy.name if run.record is not None else "this strategy"
    lost = run.record.lost_ranks if run.record is not None else ()
    churn = run.record.churn if run.record is not None else ()
    pace = "workers were lost" if lost else "workers left or joined" if churn else "every worker goes at its own pace"
    told = [f"Under {name} {pace}, so what slow ones cost is not computed."]
    if run.record is not None and run.record.origin is not None:
        told = ["This trace is replayed in part only, as told below, so what slow workers cost is not computed."]
    told += [_turnover_sentence(run, churn, rank) for rank in dict.fromkeys(each.rank for each in churn)]
    told += [f"{run.hosts[rank].host} (rank {rank}) was lost, and the others went on without it." for rank in lost]
    usual = np.median(analysis.compute_s, axis=0)
    usual = np.where(usual > 0, usual, np.median(usual[usual > 0]) if usual.any() else 0.0)
    fast, slow = int(np.argmin(usual)), int(np.argmax(usual))
    taken = np.bincount(run.steps.rank, minlength=run.world_size)
    if usual[fast] > 0 and usual[slow] >= 1.1 * usual[fast]:
        slower = f"{run.hosts[slow].host} computes {ratio_text(float(usual[slow] / usual[fast]))} slower than {run.hosts[fast].host}"
        counts = f"; it took {taken[slow]} steps, and {run.hosts[fast].host} {taken[fast]}"
        told.append(f"{slower}{'' if run.record is not None and run.record.origin is not None else counts}.")
    dropped = int(run.steps.dropped.sum()) / max(int(run.steps.samples.sum() + run.steps.dropped.sum()), 1)
    if dropped >= 0.01:
        told.append(f"{percent_text(dropped)} of the samples were computed in vain.")
    most = int(np.argmax(analysis.time_split.wait_s))
    share_s = float(analysis.time_split.wait_s[most]) / max(analysis.makespan_s, 1e-9)
    whom = run.steps.waited_for[(run.steps.rank == most) & (run.steps.waited_for >= 0)]
    if share_s >= 0.02 and len(whom):
        often = int(np.bincount(whom).argmax())
        told.append(
            f"{run.hosts[most].host} waits {percent_text(share_s)} of the time, mostly for {run.hosts[often].host}."
        )
    return tuple(told)
