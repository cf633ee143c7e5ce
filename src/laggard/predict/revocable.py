"""Expected end and cost of a forecast training on machines that may be revoked."""

from __future__ import annotations

import math
from dataclasses import dataclass

from laggard.core.errors import InputError
from laggard.core.revocation.expected_finish import (
    ExpectedFinish,
    RevocableTraining,
    choose_interval,
    expect_finish,
)
from laggard.core.revocation.lifetimes import Lifetimes
from laggard.predict.forecast import Forecast
from laggard.scenario.load import Scenario


@dataclass(frozen=True)
class RevocationOptions:
    """Facts about revocations.

    Attributes:
        lifetimes: lives of the machines.
        checkpoint_s: seconds that a checkpoint takes.
        restart_s: seconds from a revocation until training goes on.
    """

    lifetimes: Lifetimes
    checkpoint_s: float
    restart_s: float


@dataclass(frozen=True)
class RevocationForecast:
    """Expected end of a training with revocations.

    Attributes:
        workers: number of workers.
        planned: expected end with the checkpoints of the scenario; None if it has none.
        best: expected end with the best interval between checkpoints.
        step_s: seconds of a step.
        cost_per_hour: price of all hosts for an hour.
    """

    workers: int
    planned: ExpectedFinish | None
    best: ExpectedFinish
    step_s: float
    cost_per_hour: float

    @property
    def best_steps(self) -> int:
        """Return the best number of steps between two checkpoints."""
        return max(1, round(self.best.interval_s / self.step_s))

    def cost(self, finish: ExpectedFinish) -> float:
        """Return the expected price of the training."""
        return self.cost_per_hour * finish.finish_s / 3600


def forecast_revocations(
    scenario: Scenario, forecast: Forecast, options: RevocationOptions
) -> RevocationForecast:
    """Return the expected end of a training whose machines may be revoked.

    Args:
        scenario: a scenario with a number of steps, in lockstep.
        forecast: its forecast without revocations.
        options: lives of the machines, and the seconds of checkpoints and restarts.
    """
    workload, steps = scenario.workload, require_lockstep(scenario)
    hosts = len({rank.name for rank in scenario.ranks})
    step_s = forecast.step_s.usual_s
    training = RevocableTraining(step_s * steps, hosts, options.checkpoint_s, options.restart_s)
    every = workload.checkpoint_every
    return RevocationForecast(
        workers=forecast.workers,
        planned=None
        if every is None
        else expect_finish(training, options.lifetimes, every * step_s),
        best=choose_interval(training, options.lifetimes),
        step_s=step_s,
        cost_per_hour=forecast.cost_per_hour,
    )


def require_lockstep(scenario: Scenario) -> int:
    """Return the number of steps of a training whose machines may be revoked.

    Raises:
        InputError: the scenario has no number of steps, or its ranks are not in lockstep.
    """
    workload = scenario.workload
    if workload.stop.steps is None:
        raise InputError(
            f"{scenario.name}: has no number of steps, so its end is unknown — set one, for example"
            " with --set workload.stop.steps=10000"
        )
    if workload.strategy.sync_mode != "lockstep" or workload.strategy.uses_server:
        raise InputError(
            f"{scenario.name}: with {workload.strategy.name} the other workers go on when one is"
            " revoked, which is not predicted — leave out --lifetimes, or choose collectives, for"
            " example with --set workload.strategy=allreduce"
        )
    return workload.stop.steps


def format_revocations(found: RevocationForecast) -> str:
    """Format an expected end as one or two lines."""
    lines = []
    if found.planned is not None:
        lines.append(f"  with the scenario's checkpoints: {_format_finish(found, found.planned)}")
    lines.append(
        f"  with a checkpoint every {found.best_steps} steps, which is best:"
        f" {_format_finish(found, found.best)}"
    )
    return "\n".join([f"{found.workers} workers that may be revoked", *lines])


def _format_finish(found: RevocationForecast, finish: ExpectedFinish) -> str:
    if not math.isfinite(finish.finish_s):
        return "the training would hardly ever end"
    price = f", {found.cost(finish):.4g} in all" if found.cost_per_hour else ""
    return (
        f"ends after {finish.finish_s:.4g} s, with {finish.revocations:.2g} revocations"
        f" expected{price}"
    )
