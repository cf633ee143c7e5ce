"""Workers that never wait for each other: a sum of speeds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from laggard.core.cost_model.arrays import FloatArray
from laggard.core.errors import InputError
from laggard.core.simulation.crowd.absences import Absences, WrittenAbsences
from laggard.core.simulation.crowd.workers import Crowd, CrowdClass, CrowdResult, require_steps

_SAMPLED = 2000
"""Machines of a class whose drawn lives stand for all."""
_DOUBLINGS = 64


def simulate_alone(crowd: Crowd, steps: int, rng: np.random.Generator) -> CrowdResult:
    """Simulate workers whose steps wait for nobody, such as those of `ad_psgd`.

    The training ends when all together have taken as many steps as `steps` of each. What a worker
    loses of a step when it leaves does not count.

    Args:
        crowd: the workers.
        steps: mean number of steps of a worker.
        rng: source of drawn absences.

    Raises:
        InputError: there is no step, or all workers leave before that.

    Examples:
        >>> import numpy as np
        >>> from laggard.core.simulation.crowd.workers import Crowd, CrowdClass
        >>> crowd = Crowd((CrowdClass("fast", 10, 1.0), CrowdClass("slow", 10, 3.0)))
        >>> simulate_alone(crowd, 20, np.random.default_rng(1)).makespan_s
        30.0
    """
    from scipy.optimize import brentq

    require_steps(steps)
    wanted, seed = float(steps * crowd.workers), int(rng.integers(1 << 32))
    slowest_s = max(_mean_step_s(each) * max(each.slowness.factors) for each in crowd.classes)
    horizon_s = 2 * steps * slowest_s + max(
        [0.0, *(edge for each in crowd.classes for edge in each.slowness.edges_s)]
    )
    for _ in range(_DOUBLINGS):
        # The same seed draws the same lives, of which a longer time shows more.
        presences = _draw_presences(crowd, horizon_s, np.random.default_rng(seed))

        def count(time_s: float, presences: tuple[_Presence, ...] = presences) -> float:
            return sum(
                each.workers * _count_steps(each, presence, time_s)
                for each, presence in zip(crowd.classes, presences, strict=True)
            )

        if count(horizon_s) >= wanted:
            found_s = brentq(lambda time_s: count(time_s) - wanted, 0.0, horizon_s, rtol=1e-12)
            makespan_s = float(found_s)
            shares = np.array([each.mean_until(makespan_s) for each in presences])
            return CrowdResult(makespan_s, round(wanted), shares)
        if not any(each.fractions[-1] for each in presences):
            break
        horizon_s *= 2
    raise InputError(
        f"all workers have left after {horizon_s:.4g} s, and none joins again — give `back_after`,"
        " or longer lives"
    )


@dataclass(frozen=True)
class _Presence:
    """Part of the workers of a class that are present.

    Attributes:
        edges_s: times at which it changes, ascending, [M].
        fractions: part before, between and after these times, [M + 1].
    """

    edges_s: FloatArray
    fractions: FloatArray

    def at(self, times_s: FloatArray) -> FloatArray:
        """Return the part at times, [N]."""
        return self.fractions[np.searchsorted(self.edges_s, times_s, side="right")]

    def mean_until(self, time_s: float) -> float:
        """Return the mean part until a time."""
        moments = np.concatenate([[0.0], self.edges_s[self.edges_s < time_s], [time_s]])
        return float((np.diff(moments) * self.at(moments[:-1])).sum() / time_s)


def _draw_presences(
    crowd: Crowd, horizon_s: float, rng: np.random.Generator
) -> tuple[_Presence, ...]:
    return tuple(
        _Presence(np.zeros(0), np.ones(1))
        if each.absences is None
        else _draw_presence(each.absences, each.workers, horizon_s, rng)
        for each in crowd.classes
    )


def _draw_presence(
    absences: Absences, workers: int, horizon_s: float, rng: np.random.Generator
) -> _Presence:
    sampled = 1 if isinstance(absences, WrittenAbsences) else min(workers, _SAMPLED)
    times_s: list[FloatArray] = []
    changes: list[FloatArray] = []
    joined_s = np.zeros(sampled)
    while (joined_s < horizon_s).any():
        leaves_s, joined_s = absences.find_next(joined_s, rng)
        times_s += [leaves_s, joined_s]
        changes += [np.full(sampled, -1.0), np.full(sampled, 1.0)]
    times, change = np.concatenate(times_s), np.concatenate(changes)
    order = np.argsort(times[times < horizon_s], kind="stable")
    fractions = 1.0 + np.cumsum(change[times < horizon_s][order]) / sampled
    return _Presence(times[times < horizon_s][order], np.concatenate([[1.0], fractions]))


def _mean_step_s(workers: CrowdClass) -> float:
    """Return the mean of a lognormal duration, whose median is the usual one."""
    return workers.step_s * math.exp(workers.spread**2 / 2)


def _count_steps(workers: CrowdClass, presence: _Presence, time_s: float) -> float:
    """Return the mean number of steps that a worker has taken at a time."""
    edges_s, factors = np.array(workers.slowness.edges_s), np.array(workers.slowness.factors)
    changes_s = np.concatenate([[0.0], edges_s, presence.edges_s])
    moments = np.unique(np.minimum(np.concatenate([changes_s, [time_s]]), time_s))
    begins_s = moments[:-1]
    slowness = factors[np.searchsorted(edges_s, begins_s, side="right")]
    worked_s = (np.diff(moments) * presence.at(begins_s) / slowness).sum()
    return float(worked_s) / _mean_step_s(workers)
