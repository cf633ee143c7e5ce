"""The run of ranks of their own pace that references and found causes alone account for (see
`replay/model.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from laggard.analysis.causes import FAMILY_CODES, Cause
from laggard.analysis.columns import BoolArray, FloatArray, IntArray
from laggard.analysis.intervals import LEAST_STEPS, running_mean, running_median
from laggard.analysis.own_pace.causes import Work, transfer_s, usual_transfer_s
from laggard.analysis.own_pace.needs import Needs
from laggard.analysis.own_pace.paces import PHASES, Pace
from laggard.analysis.own_pace.replay import Durations, Race
from laggard.analysis.reference import COMPUTE_CODES, References, log_ratio
from laggard.span_schema import Phase

_COMM = Phase.COMM.code
_LOCAL = [Phase.FETCH.code, *COMPUTE_CODES]


def modelled_race_s(
    race: Race, work: Work, references: References, causes: Sequence[Cause], seed: int
) -> float:
    """Makespan of the fitted model, in virtual seconds.

    Work is its reference times the slowdown of the causes acting on it; transfers, and how long
    word of a step takes, are what they usually are; both times jitter, dealt out anew. How long
    anybody waits follows from that alone.

    Args:
        race: the run.
        work: the ranks' steps, side by side.
        references: own and class references.
        causes: the causes found.
        seed: of the order in which jitter is dealt out.
    """
    keys = np.random.default_rng(seed).random(len(work.samples))
    before, after = [], []
    for rank, pace in enumerate(race.paces):
        seconds = work.seconds[: len(pace), rank]
        own = [cause for cause in causes if cause.rank == rank]
        change = (
            _modelled(pace, rank, work, references, own, keys, _kept(pace, race.end_s)) - seconds
        )
        early = np.where(seconds > 0, pace.before / np.where(seconds > 0, seconds, 1.0), 0.0)
        before.append((pace.ready_s - pace.start_s + (change * early).sum(axis=1))[None])
        after.append((pace.end_s - pace.go_s + (change * (1.0 - early)).sum(axis=1))[None])
    durations = Durations(
        tuple(np.maximum(b, 0.0) for b in before), tuple(np.maximum(a, 0.0) for a in after)
    )
    needs = tuple(
        _with_modelled_lags(race, rank, [c for c in causes if c.rank == rank], keys)
        for rank in range(len(race.paces))
    )
    return float(replace(race, needs=needs).makespans(durations, goal=race.goal())[0])


def _kept(pace: Pace, over_s: float) -> BoolArray:
    """Steps that enter as they were, [N]: of warm-up, and those under way when training was over,
    in which ranks wait to be told.
    """
    return np.asarray(pace.warm_up | (pace.end_s > over_s))


def _modelled(
    pace: Pace,
    rank: int,
    work: Work,
    references: References,
    causes: Sequence[Cause],
    keys: FloatArray,
    kept: BoolArray,
) -> FloatArray:
    """Seconds of every phase, [N, P]; of kept steps as they were. What happens now and then only is
    dealt out as it is.
    """
    seconds = work.seconds[: len(pace), rank]
    levels = _levels(pace, rank, references, causes)
    modelled = seconds[_deal(kept, keys, pace.taken)]
    jitter = _jitter(log_ratio(seconds[:, _LOCAL].sum(axis=1), levels[:, _LOCAL].sum(axis=1)))
    order = _deal(kept, keys, pace.taken * (1 << 32))
    modelled[:, _LOCAL] = levels[:, _LOCAL] * np.exp(jitter[order])[:, None]
    modelled[:, _COMM] = _modelled_transfers(pace, seconds[:, _COMM], causes, keys, kept)
    return np.where(kept[:, None], seconds, modelled)


def _modelled_transfers(
    pace: Pace, seconds: FloatArray, causes: Sequence[Cause], keys: FloatArray, kept: BoolArray
) -> FloatArray:
    """The same of transfers, [N]: the steps that have any are dealt theirs among themselves.

    Transfers are of two kinds as often as not, some that had come before anybody asked and some
    that had not, so that means tell more of them than medians.
    """
    carrying = np.flatnonzero((seconds > 0) & ~kept)
    modelled = np.zeros(len(seconds))
    if not len(carrying):
        return modelled
    slowness = (np.ones(len(pace)) if pace.meshed else _slowness(pace, causes))[carrying]
    usual = seconds[carrying] / slowness
    jitter = usual / running_mean(usual, 2 * LEAST_STEPS + 1)
    kinds = pace.taken[carrying] * (1 << 32) + np.rint(64 * slowness).astype(np.int64)
    order = _deal(np.zeros(len(carrying), dtype=np.bool_), keys[carrying], kinds)
    modelled[carrying] = usual.mean() * slowness * jitter[order]
    return modelled


def _levels(pace: Pace, rank: int, references: References, causes: Sequence[Cause]) -> FloatArray:
    """What work takes by the references and causes alone, [N, P]."""
    steps = len(pace)
    levels = references.device.of_rank(rank, range(PHASES))[:steps]
    for cause in sorted(causes, key=lambda each: each.kind == "dynamic"):
        if cause.family == "network":
            continue
        codes = list(FAMILY_CODES[cause.family])
        usual = references.own.of_rank(rank, codes)[:steps] * np.exp(cause.baseline)
        covered = (
            np.flatnonzero(cause.covers(steps)) if cause.kind == "dynamic" else np.arange(steps)
        )
        levels[np.ix_(covered, np.array(codes))] = usual[covered] * (
            cause.slowdown if cause.kind == "dynamic" else 1.0
        )
    return levels


def _slowness(pace: Pace, causes: Sequence[Cause]) -> FloatArray:
    """How much slower than usual transfers are by the causes alone, [N]."""
    slowness = np.ones(len(pace))
    for cause in causes:
        if cause.family == "network":
            slowness[cause.first : cause.last + 1] = np.exp(cause.baseline) * cause.slowdown
        if cause.burdens_transfer is not None:
            first, last = cause.burdens_transfer
            seconds = transfer_s(pace)[first : last + 1]
            slowness[first : last + 1] = np.median(seconds[seconds > 0]) / usual_transfer_s(pace)
    return slowness


def _jitter(logs: FloatArray) -> FloatArray:
    """What is left of a series about its running median."""
    return logs - running_median(logs, 2 * LEAST_STEPS + 1)


def _deal(kept: BoolArray, keys: FloatArray, alike: IntArray) -> IntArray:
    """For each step the step whose jitter it gets: another like it, [N]; ranks that are in step are
    dealt the same steps.
    """
    order = np.arange(len(kept))
    for size in np.unique(alike):
        same = np.flatnonzero((alike == size) & ~kept)
        order[same] = same[np.argsort(keys[same])]
    return order


def _with_modelled_lags(
    race: Race, rank: int, causes: Sequence[Cause], keys: FloatArray
) -> tuple[Needs, ...]:
    """A rank's needs, whose word takes as long as it usually does between the two, slower where a
    cause acts, with jitter dealt out anew.

    Where the rank did not have to wait for it, it is what it was taken to be.
    """
    if not race.needs[rank]:
        return ()
    pace, needs = race.paces[rank], race.needs[rank]
    usual = _usual_lags_s(race, rank)
    slowness = _slowness(pace, causes) if pace.meshed else np.ones(len(pace))
    stood = {
        step: need.lag_s / (usual[need.rank] * slowness[step])
        for step, each in enumerate(needs)
        for need in each.of
        if need.rank == pace.awaited[step] and need.lag_s > 0
    }
    order = sorted(stood, key=lambda step: float(keys[step]))
    dealt = {step: stood[other] for step, other in zip(stood, order, strict=True)}
    return tuple(
        replace(
            each,
            of=tuple(
                replace(need, lag_s=usual[need.rank] * slowness[step] * dealt[step])
                if step in dealt and need.rank == pace.awaited[step]
                else need
                for need in each.of
            ),
        )
        for step, each in enumerate(needs)
    )


def _usual_lags_s(race: Race, rank: int) -> dict[int, float]:
    """Median lag by who was waited for; of who never was, as of all."""
    lags: dict[int, list[float]] = {}
    others = {need.rank for each in race.needs[rank] for need in each.of}
    for step, each in enumerate(race.needs[rank]):
        for need in each.of:
            if need.rank == race.paces[rank].awaited[step] and need.lag_s > 0:
                lags.setdefault(need.rank, []).append(need.lag_s)
    known = {other: float(np.median(values)) for other, values in lags.items()}
    middle = float(np.median(list(known.values()))) if known else 0.0
    return {other: known.get(other, middle) for other in others}
