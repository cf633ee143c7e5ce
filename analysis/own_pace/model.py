"""The run of ranks of their own pace that references and found causes alone account for (see `replay/model.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from laggard.analysis.causes import FAMILY_CODES, Cause
from laggard.analysis.columns import FloatArray, IntArray
from laggard.analysis.intervals import LEAST_STEPS, running_median
from laggard.analysis.own_pace.causes import Work
from laggard.analysis.own_pace.needs import Needs
from laggard.analysis.own_pace.paces import Pace
from laggard.analysis.own_pace.replay import Durations, Race
from laggard.analysis.reference import References, log_ratio
from laggard.span_schema import Phase

_COMM = Phase.COMM.code


def modelled_race_s(race: Race, work: Work, references: References, causes: Sequence[Cause], seed: int) -> float:
    """Makespan of the fitted model, in virtual seconds.

    Work is its reference times the slowdown of the causes acting on it; transfers, and how long word of a step takes, are what they usually are; both
    times jitter, dealt out anew. How long anybody waits follows from that alone.

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
        scale = _scale(pace, rank, work, references, [c for c in causes if c.rank == rank], keys)
        before.append((pace.ready_s - pace.start_s + (pace.before * (scale - 1.0)).sum(axis=1))[None])
        after.append((pace.end_s - pace.go_s + (pace.after * (scale - 1.0)).sum(axis=1))[None])
    durations = Durations(tuple(np.maximum(b, 0.0) for b in before), tuple(np.maximum(a, 0.0) for a in after))
    return float(replace(race, needs=_with_usual_lags(race)).makespans(durations, goal=race.goal())[0])


def _scale(
    pace: Pace, rank: int, work: Work, references: References, causes: Sequence[Cause], keys: FloatArray
) -> FloatArray:
    """Modelled over observed seconds, [N, P]; 1 in warm-up."""
    steps = len(pace)
    seconds = work.seconds[:steps, rank]
    levels = references.device[:steps, rank].copy()
    levels[:, _COMM] = np.median(seconds[~pace.warm_up, _COMM]) if (~pace.warm_up).any() else 0.0
    for cause in sorted(causes, key=lambda each: each.kind == "dynamic"):
        codes = [_COMM] if cause.family == "network" else list(FAMILY_CODES[cause.family])
        usual = references.own[:steps, rank][:, codes] if cause.family != "network" else levels[:, codes]
        usual = usual * np.exp(cause.baseline)
        covered = np.flatnonzero(cause.covers(steps)) if cause.kind == "dynamic" else np.arange(steps)
        levels[np.ix_(covered, np.array(codes))] = usual[covered] * (cause.slowdown if cause.kind == "dynamic" else 1.0)
        if cause.burdens_transfer is not None:
            first, last = cause.burdens_transfer
            levels[first : last + 1, _COMM] = np.median(seconds[first : last + 1, _COMM])
    order = _deal(pace, keys)
    jitter = np.zeros_like(levels)
    local = [phase for phase in range(levels.shape[1]) if phase != _COMM]
    jitter[:, local] = _jitter(log_ratio(seconds[:, local].sum(axis=1), levels[:, local].sum(axis=1)))[:, None]
    jitter[:, _COMM] = _jitter(log_ratio(seconds[:, _COMM], levels[:, _COMM]))
    modelled = levels * np.exp(jitter[order])
    known = (seconds > 0) & (levels > 0) & ~pace.warm_up[:, None]
    return np.where(known, modelled / np.where(known, seconds, 1.0), 1.0)


def _jitter(logs: FloatArray) -> FloatArray:
    """What is left of a series about its running median."""
    return logs - running_median(logs, 2 * LEAST_STEPS + 1)


def _deal(pace: Pace, keys: FloatArray) -> IntArray:
    """For each step the step whose jitter it gets: another with as many samples, [N]; ranks that are in step are dealt the same steps."""
    order = np.arange(len(pace))
    for size in np.unique(pace.taken):
        same = np.flatnonzero((pace.taken == size) & ~pace.warm_up)
        order[same] = same[np.argsort(keys[same])]
    return order


def _with_usual_lags(race: Race) -> tuple[tuple[Needs, ...], ...]:
    """Needs whose word takes as long as it usually does between the two."""
    lags: dict[tuple[int, int], list[float]] = {}
    for rank, of_rank in enumerate(race.needs):
        for needs in of_rank:
            for need in needs.of:
                lags.setdefault((need.rank, rank), []).append(need.lag_s)
    usual = {pair: float(np.median(values)) for pair, values in lags.items()}
    return tuple(
        tuple(
            replace(needs, of=tuple(replace(need, lag_s=usual[need.rank, rank]) for need in needs.of))
            for needs in of_rank
        )
        for rank, of_rank in enumerate(race.needs)
    )
