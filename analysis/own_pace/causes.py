"""What was slow in ranks of their own pace: each rank's steps against its own usual, and against
the fastest class's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from laggard.analysis.causes import FAMILY_CODES, Cause
from laggard.analysis.columns import BoolArray, FloatArray, IntArray
from laggard.analysis.detect import FOLDED_SHARE, LEAST_SHARE, Series, causes_of_series
from laggard.analysis.intervals import LEAST_STEPS, shared_drift
from laggard.analysis.own_pace.paces import PHASES, Pace
from laggard.analysis.reference import References, log_ratio
from laggard.run_schema import Family
from laggard.span_schema import Phase

_COMM = Phase.COMM.code


@dataclass(frozen=True)
class Work:
    """All ranks' steps side by side, each rank's n-th in row n; S is the most that any took. What
    is beyond a rank's last is not counted.
    """

    seconds: FloatArray
    samples: IntArray
    counted: BoolArray

    def of_rank(self, rank: int) -> FloatArray:
        """Seconds of each phase, [S, P]."""
        return self.seconds[:, rank]


def side_by_side(paces: Sequence[Pace]) -> Work:
    """The work of all ranks, waiting excluded."""
    most = max(len(pace) for pace in paces)
    seconds = np.zeros((most, len(paces), PHASES))
    samples, counted = (
        np.zeros((most, len(paces)), dtype=np.int64),
        np.zeros((most, len(paces)), dtype=np.bool_),
    )
    for rank, pace in enumerate(paces):
        seconds[: len(pace), rank] = pace.before + pace.after
        samples[: len(pace), rank] = pace.taken
        counted[: len(pace), rank] = ~pace.warm_up
    return Work(seconds, samples, counted)


def find_own_causes(
    paces: Sequence[Pace], work: Work, references: References, makespan_s: float
) -> tuple[Cause, ...]:
    """Causes of all ranks; their steps are indices into a rank's own.

    Args:
        paces: of every rank.
        work: theirs, side by side.
        references: fitted to it.
        makespan_s: ranks that spend under 1 % of it on a family have no cause there.
    """
    found: list[Cause] = []
    drift = _machine_drift(paces, work, references, makespan_s)
    for rank, pace in enumerate(paces):
        usable = np.flatnonzero(work.counted[:, rank])
        if len(usable) < LEAST_STEPS:
            continue
        local: list[Cause] = []
        for family in ("compute", "storage"):
            series = _series(work, references, family, rank, usable)
            codes = list(FAMILY_CODES[family])
            if work.seconds[usable, rank][:, codes].sum() >= LEAST_SHARE * makespan_s:
                local += causes_of_series(
                    replace(series, own=series.own - drift(pace.ready_s[usable])), family, rank
                )
        found += _with_transfers(local, pace, work.counted[: len(pace), rank], rank, makespan_s)
    return tuple(found)


def _series(
    work: Work, references: References, family: Family, rank: int, usable: IntArray
) -> Series:
    codes = list(FAMILY_CODES[family])
    own = references.own.total(rank, codes)[usable]
    fleet = references.fleet.total(rank, codes)[usable]
    seconds = work.seconds[usable, rank][:, codes].sum(axis=1)
    return Series(log_ratio(seconds, own), log_ratio(own, fleet), usable, references.scatter)


class _Drift:
    """How much slower than usual three quarters of the ranks compute at a time (log)."""

    def __init__(self, grid_s: FloatArray, drift: FloatArray) -> None:
        self._grid_s, self._drift = grid_s, drift

    def __call__(self, time_s: FloatArray) -> FloatArray:
        return np.interp(time_s, self._grid_s, self._drift)


def _machine_drift(
    paces: Sequence[Pace], work: Work, references: References, makespan_s: float
) -> _Drift:
    usable = [np.flatnonzero(work.counted[:, rank]) for rank in range(len(paces))]
    points = int(np.median([len(each) for each in usable]))
    grid_s = np.linspace(0.0, makespan_s, max(points, 2))
    logs = [
        np.interp(
            grid_s, pace.ready_s[steps], _series(work, references, "compute", rank, steps).own
        )
        if len(steps)
        else np.zeros(len(grid_s))
        for rank, (pace, steps) in enumerate(zip(paces, usable, strict=True))
    ]
    return _Drift(grid_s, shared_drift(np.stack(logs, axis=1)))


def transfer_s(pace: Pace) -> FloatArray:
    """What a rank stands still for data in each step, once it is sent, [N]: for messages of others,
    or to and from a server.
    """
    return pace.message_s if pace.meshed else pace.before[:, _COMM] + pace.after[:, _COMM]


def usual_transfer_s(pace: Pace) -> float:
    """The same in a usual step that has any."""
    seconds = transfer_s(pace)[~pace.warm_up]
    return float(np.median(seconds[seconds > 0])) if (seconds > 0).any() else 0.0


def _with_transfers(
    local: list[Cause], pace: Pace, counted: BoolArray, rank: int, makespan_s: float
) -> list[Cause]:
    """Slow intervals of a rank's transfers; one that comes with the rank's slow compute is charged
    to that (see `find_transfer_causes`).
    """
    usable = np.flatnonzero(counted & (transfer_s(pace) > 0))
    seconds = transfer_s(pace)[usable]
    if len(usable) < 2 * LEAST_STEPS or seconds.sum() < LEAST_SHARE * makespan_s:
        return local
    own = log_ratio(seconds, np.full(len(seconds), usual_transfer_s(pace)))
    found = causes_of_series(Series(own, np.zeros(len(own)), usable, 0.0), "network", rank)
    marked = list(local)
    for cause in (each for each in found if each.kind == "dynamic"):
        culprits = [i for i, c in enumerate(marked) if _starves(c, cause)]
        if not culprits:
            marked.append(cause)
        for index in culprits:
            marked[index] = replace(marked[index], burdens_transfer=(cause.first, cause.last))
    return marked


def _starves(cause: Cause, transfer: Cause) -> bool:
    shared = cause.overlap(transfer.first, transfer.last)
    return (
        cause.kind == "dynamic"
        and cause.family == "compute"
        and shared >= FOLDED_SHARE * transfer.length
    )
