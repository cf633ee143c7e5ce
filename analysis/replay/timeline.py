"""A run's spans as barriers and the work between them, the form in which it can be replayed.

E barriers (collectives and evaluation pauses) in time order, S steps, W ranks, P phases (`Phase.code`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laggard.analysis.columns import BoolArray, FloatArray, IntArray, SpanColumns
from laggard.analysis.load import Run
from laggard.errors import RunFolderError
from laggard.span_schema import Flag, Lane, Phase

PHASES = len(Phase)
_S = 1e-9


@dataclass(frozen=True)
class Rows:
    """Spans of local work: step index, rank, phase, seconds, whom with (-1: nobody), and the barrier they come before (E: after the last)."""

    step: IntArray
    rank: IntArray
    phase: IntArray
    seconds: FloatArray
    peer: IntArray
    barrier: IntArray


@dataclass(frozen=True)
class Timeline:
    """What happened, in virtual seconds since the first-step barrier.

    Attributes:
        steps: step numbers, [S].
        warm_up: steps that no reference may use, [S].
        seconds: local work per step, rank and phase, [S, W, P].
        samples: samples per step and rank, [S, W].
        barrier_step: index of each barrier's step, [E].
        group: collective instance within the step; -1 for an evaluation pause, [E].
        member: who is part of each barrier: all, or those of one tier, [E, W].
        arrival: own arrival at each barrier, [E, W]; of a rank that is no part of it, the end of its last one before.
        finish: leaving it, [E, W].
        local: work before each barrier, and after the last, [E + 1, W].
        rows: the spans that `local` is made of (what is missing between them is unrecorded time).
        end: end of each rank's last span, [W].
    """

    steps: IntArray
    warm_up: BoolArray
    seconds: FloatArray
    samples: IntArray
    barrier_step: IntArray
    group: IntArray
    member: BoolArray
    arrival: FloatArray
    finish: FloatArray
    local: FloatArray
    rows: Rows
    end: FloatArray

    @property
    def pause(self) -> BoolArray:
        """Which barriers are evaluation pauses, [E]."""
        return self.group < 0

    @property
    def counted(self) -> BoolArray:
        """Which steps of which rank references may use, [S, W]: all but warm-up."""
        counted: BoolArray = np.broadcast_to(~self.warm_up[:, None], self.samples.shape)
        return counted

    @property
    def latest(self) -> FloatArray:
        """Latest arrival at each barrier, [E]."""
        return _largest(np.where(self.member, self.arrival, -np.inf))

    @property
    def outside(self) -> FloatArray:
        """Seconds of each barrier that are outside the clock: from the last arrival to the first resume, [E]."""
        first_resume: FloatArray = self.finish.min(axis=1) if self.finish.size else np.zeros(len(self.group))
        return np.where(self.pause, np.maximum(first_resume - self.latest, 0.0), 0.0)

    @property
    def makespan(self) -> float:
        """First-step barrier to the end, without what is outside the clock."""
        return float(self.end.max() - self.outside.sum())

    @property
    def depends(self) -> BoolArray:
        """Whether a rank stayed at a barrier until the last had arrived (the root of a broadcast may not), [E, W]."""
        depends: BoolArray = self.member & (self.finish >= self.latest[:, None])
        return depends

    @property
    def wait(self) -> FloatArray:
        """Waiting for the last to arrive, per barrier and rank, [E, W]."""
        return np.where(self.member, np.minimum(self.finish, self.latest[:, None]) - self.arrival, 0.0)

    @property
    def transfer(self) -> FloatArray:
        """Time at a barrier once all had arrived; for a pause, how much later than the first a rank resumed, [E, W]."""
        after = np.maximum(self.finish - self.latest[:, None], 0.0)
        return np.where(self.member, after - self.outside[:, None], 0.0)

    def per_step(self, values: FloatArray) -> FloatArray:
        """Sums values per barrier and rank, [E, W], over the collectives of each step, [S, W]."""
        total = np.zeros((len(self.steps), values.shape[1]))
        np.add.at(total, self.barrier_step[~self.pause], values[~self.pause])
        return total


def build_timeline(run: Run) -> Timeline:
    """Arranges a run's spans.

    Args:
        run: a loaded run. Steps beyond the last that every rank began are left out.

    Returns:
        The timeline.

    Raises:
        RunFolderError: some rank recorded no step.
    """
    spans = _kept(run)
    steps, step = np.unique(spans.step, return_inverse=True)
    world = run.world_size
    barrier_rows = np.isin(spans.phase, (Phase.COMM.code, Phase.EVALUATE.code)) & (spans.group >= 0)
    barriers, is_barrier = _barriers(spans, step.astype(np.int64), barrier_rows, world)
    barrier_step, group, member, arrival, finish = barriers
    work = spans.where(~is_barrier)
    work_step = step[~is_barrier].astype(np.int64)
    end = np.zeros(world)
    np.maximum.at(end, spans.rank, spans.end_ns * _S)
    rows = Rows(
        work_step,
        work.rank,
        work.phase,
        np.asarray(work.dur_ns * _S, np.float64),
        work.peer,
        _next_barrier(work, arrival),
    )
    samples = np.zeros((len(steps), world), dtype=np.int64)
    np.maximum.at(samples, (step, spans.rank), spans.work)
    warm_up = np.zeros(len(steps), dtype=np.bool_)
    warm_up[step[(spans.flags & Flag.WARM_UP) != 0]] = True
    return Timeline(
        steps=steps,
        warm_up=warm_up,
        seconds=_cells(rows, len(steps), world),
        samples=samples,
        barrier_step=barrier_step,
        group=group,
        member=member,
        arrival=arrival,
        finish=finish,
        local=np.vstack([arrival, end]) - np.vstack([np.zeros(world), finish]),
        rows=rows,
        end=end,
    )


def _kept(run: Run) -> SpanColumns:
    """Main-lane spans of the steps that every rank finished, from the first-step barrier on."""
    whole = (run.spans.flags & Flag.TRUNCATED) == 0
    spans = run.spans.where(whole & (run.spans.lane == Lane.MAIN) & (run.spans.start_ns >= 0) & (run.spans.step >= 0))
    last = [spans.step[spans.rank == rank].max(initial=-1) for rank in range(run.world_size)]
    if not last or min(last) < 0:
        lacking = [host.host for host, step in zip(run.hosts, last, strict=True) if step < 0]
        raise RunFolderError(
            f"{run.folder}: no training step was finished by {', '.join(lacking) or 'any rank'}; "
            "there is nothing to analyse (its logs folder says how far the run got)"
        )
    return spans.where(spans.step <= min(last))


def _barriers(
    spans: SpanColumns, step: IntArray, candidates: BoolArray, world: int
) -> tuple[tuple[IntArray, IntArray, BoolArray, FloatArray, FloatArray], BoolArray]:
    """Barriers in time order, and which spans belong to them.

    Collectives that several ranks reached, and pauses that all did: a strategy numbers the collectives of a step, so that those with one
    number are parts of one.
    """
    rows = np.flatnonzero(candidates)
    group = np.where(spans.phase[rows] == Phase.EVALUATE.code, -1 - spans.group[rows], spans.group[rows])
    keys, index = np.unique(np.column_stack([step[rows], group]), axis=0, return_inverse=True)
    index = index.reshape(-1)
    arrival = np.full((len(keys), world), np.nan)
    finish = arrival.copy()
    arrival[index, spans.rank[rows]] = spans.start_ns[rows] * _S
    finish[index, spans.rank[rows]] = spans.end_ns[rows] * _S
    member = ~np.isnan(arrival)
    real = member.sum(axis=1) >= np.where(keys[:, 1] < 0, world, min(2, world))
    used = np.zeros(len(spans), dtype=np.bool_)
    used[rows[real[index]]] = True
    latest = _largest(np.where(member, arrival, -np.inf))
    order = np.flatnonzero(real)[np.argsort(latest[real], kind="stable")]
    member, arrival, finish = member[order], arrival[order], finish[order]
    before = np.maximum.accumulate(np.where(member, finish, 0.0), axis=0)
    arrival, finish = np.where(member, arrival, before), np.where(member, finish, before)
    return (keys[order, 0], np.maximum(keys[order, 1], -1), member, arrival, finish), used


def _next_barrier(work: SpanColumns, arrival: FloatArray) -> IntArray:
    """Index of the first barrier that each span's rank reached after the span began."""
    following = np.zeros(len(work), dtype=np.int64)
    for rank in range(arrival.shape[1]):
        own = work.rank == rank
        following[own] = np.searchsorted(arrival[:, rank], work.start_ns[own] * _S, side="right")
    return following


def _cells(rows: Rows, steps: int, world: int) -> FloatArray:
    cell = (rows.step * world + rows.rank) * PHASES + rows.phase
    total: FloatArray = np.bincount(cell, weights=rows.seconds, minlength=steps * world * PHASES).astype(np.float64)
    return total.reshape(steps, world, PHASES)


def _largest(values: FloatArray) -> FloatArray:
    """Largest of each row; empty for no rows."""
    largest: FloatArray = values.max(axis=1) if values.size else np.zeros(len(values))
    return largest
