"""Expected end of a training on machines that may be revoked, with checkpoints.

A training in lockstep stops when one of its machines is revoked. It waits for a replacement, loads
the last checkpoint and repeats the steps since then. With a constant rate r of revocations, an
interval of t seconds of work and c seconds for its checkpoint takes

    (exp(r R) / r) (exp(r (t + c)) - 1)

seconds, where R is the time of a restart (J. T. Daly, "A higher order estimate of the optimum
checkpoint interval for restart dumps", Future Generation Computer Systems 22, 2006). Here the rate
changes with the age of the machines, so it is constant for each interval only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from laggard.core.cost_model.arrays import FloatArray
from laggard.core.cost_model.demand import require_quantity
from laggard.core.errors import InputError
from laggard.core.revocation.lifetimes import Lifetimes, compute_revocation_rate

_VALUES = 2000
"""Values of the rate of revocations over the expected time."""

_HOPELESS = 1e3
"""A training that would take longer than so many times its work is never going to end."""


@dataclass(frozen=True)
class RevocableTraining:
    """Training in lockstep on machines that may be revoked.

    Attributes:
        work_s: seconds of the training without checkpoints and revocations.
        machines: number of machines.
        checkpoint_s: seconds that a checkpoint takes.
        restart_s: seconds from a revocation until the training goes on from its last checkpoint.
    """

    work_s: float
    machines: int
    checkpoint_s: float
    restart_s: float

    def __post_init__(self) -> None:
        require_quantity("work_s", self.work_s, "give the seconds of the training", positive=True)
        require_quantity("checkpoint_s", self.checkpoint_s, "give the seconds of a checkpoint")
        require_quantity("restart_s", self.restart_s, "give the seconds of a restart")
        if self.machines < 1:
            raise InputError(f"machines is {self.machines} and must be at least 1")


@dataclass(frozen=True)
class ExpectedFinish:
    """Expected end of a training.

    Attributes:
        finish_s: expected seconds until the training ends; infinite if it hardly ever would.
        revocations: expected number of revocations until then.
        interval_s: seconds of work between two checkpoints.
    """

    finish_s: float
    revocations: float
    interval_s: float


def expect_finish(
    training: RevocableTraining, lifetimes: Lifetimes, interval_s: float
) -> ExpectedFinish:
    """Return the expected end of a training with a checkpoint after every `interval_s` of work.

    Args:
        training: the training.
        lifetimes: lives of the machines, all of which start with the training.
        interval_s: seconds of work between two checkpoints.

    Raises:
        InputError: the interval is not positive.

    Examples:
        >>> from laggard.core.revocation.lifetimes import Life, Lifetimes
        >>> from laggard.core.revocation.expected_finish import RevocableTraining
        >>> training = RevocableTraining(3600.0, machines=1, checkpoint_s=0.0, restart_s=60.0)
        >>> round(expect_finish(training, Lifetimes((Life(1e9),)), 600.0).finish_s)
        3600
    """
    require_quantity(
        "interval_s", interval_s, "give the seconds between checkpoints", positive=True
    )
    horizon_s = training.work_s * (1 + training.checkpoint_s / interval_s) + training.restart_s
    while True:
        found = _walk(training, lifetimes, interval_s, 2 * horizon_s)
        if found is not None:
            return found
        horizon_s *= 4
        if horizon_s > _HOPELESS * training.work_s:
            return ExpectedFinish(math.inf, math.inf, interval_s)


def choose_interval(training: RevocableTraining, lifetimes: Lifetimes) -> ExpectedFinish:
    """Return the expected end with the best interval between checkpoints."""
    longest_s = training.work_s
    shortest_s = min(max(training.checkpoint_s, longest_s / 1000), longest_s)
    candidates = np.geomspace(shortest_s, longest_s, 40)
    return min(
        (expect_finish(training, lifetimes, float(each)) for each in candidates),
        key=lambda each: each.finish_s,
    )


def _walk(
    training: RevocableTraining, lifetimes: Lifetimes, interval_s: float, horizon_s: float
) -> ExpectedFinish | None:
    """Return the expected end, or None if it is after the horizon."""
    step_s = horizon_s / _VALUES
    rates = training.machines * compute_revocation_rate(lifetimes, step_s, _VALUES)
    # Observed lives end at single moments. An interval fails if one of them is within it, so what
    # counts is the mean rate of an interval.
    whole_s = interval_s + training.checkpoint_s + training.restart_s
    rates = _smooth(rates, round(whole_s / step_s))
    # In each step of time, as much work is done as an interval at this rate takes for its own.
    per_work = np.array([_interval_cost(training, float(rate), interval_s) for rate in rates])
    work = np.cumsum(step_s / per_work)
    place = int(np.searchsorted(work, training.work_s))
    if place >= _VALUES:
        return None
    before = work[place - 1] if place else 0.0
    finish_s = (place + (training.work_s - before) / (work[place] - before)) * step_s
    revocations = float(rates[:place].sum() * step_s)
    return ExpectedFinish(float(finish_s), revocations, interval_s)


def _smooth(rates: FloatArray, width: int) -> FloatArray:
    """Return the mean over `width` values around each one; fewer at the ends."""
    width = min(max(width, 1), len(rates))
    sums = np.convolve(rates, np.ones(width), "same")
    counts: FloatArray = np.convolve(np.ones(len(rates)), np.ones(width), "same")
    return np.asarray(sums / counts)


def _interval_cost(training: RevocableTraining, rate: float, interval_s: float) -> float:
    """Return the expected seconds per second of work, at a constant rate of revocations."""
    whole_s = interval_s + training.checkpoint_s
    if rate * (whole_s + training.restart_s) > math.log(_HOPELESS * 10):
        return math.inf
    if rate <= 0:
        return whole_s / interval_s
    return math.exp(rate * training.restart_s) * math.expm1(rate * whole_s) / rate / interval_s
