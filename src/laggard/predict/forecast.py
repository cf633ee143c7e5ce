"""Forecast of a scenario: step time, speed, cost, what limits it, and the best number of workers.

The training is simulated with the rules of its strategy. What limits it is found by simulating it
again without one of its burdens: with a server that takes no time, with infinitely fast links, or
with all workers as fast as the fastest.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from laggard.core.cost_model.knee import find_knee
from laggard.core.cost_model.links import HopEnds, NetworkHop
from laggard.core.cost_model.step_seconds import StepSeconds
from laggard.core.errors import InputError
from laggard.core.simulation.network import SimulatedNetwork
from laggard.core.simulation.strategies.catalog import (
    STRATEGIES,
    AlternativeStrategy,
    describe_strategy,
)
from laggard.core.simulation.training import SimulationInput
from laggard.predict.host_steps import StepForecaster
from laggard.predict.planned_training import plan_training
from laggard.scenario.load import Scenario
from laggard.workloads.specification.training import Stop

MAX_STEPS = 1000
"""Largest number of steps that are simulated; longer trainings repeat them."""

STEADY_STEPS = 60
"""Simulated steps of a scenario without timed changes, whose steps are all alike."""

_LEAST_GAIN = 0.05
"""Part of the makespan that a burden must cost to be named as the limit."""


class Limit(enum.StrEnum):
    """Burden that limits the speed of a training."""

    SERVER = "the server's processor time"
    LINKS = "the links"
    SLOW_WORKERS = "the slowest workers"
    COMPUTE = "computing itself"


@dataclass(frozen=True)
class Forecast:
    """Forecast of one scenario.

    Attributes:
        workers: number of workers.
        samples: samples of a step of one worker.
        step_s: mean virtual seconds of a global step, with an interval.
        batch_size: samples of a global step.
        gains: part of the makespan that would be saved without each burden.
        cost_per_hour: price of all hosts for an hour.
        slowest: host whose steps take longest.
        notes: sentences about steps that are unlike the measured ones.
    """

    workers: int
    samples: int
    step_s: StepSeconds
    batch_size: int
    gains: Mapping[Limit, float]
    cost_per_hour: float
    slowest: str
    notes: tuple[str, ...] = ()

    @property
    def samples_per_s(self) -> float:
        """Return the speed of the training."""
        return self.batch_size / self.step_s.usual_s

    @property
    def limit(self) -> Limit:
        """Return the burden that costs most; computing itself if none costs 5 %."""
        burden = max(self.gains, key=lambda each: self.gains[each])
        return burden if self.gains[burden] >= _LEAST_GAIN else Limit.COMPUTE

    def makespan_s(self, steps: int) -> StepSeconds:
        """Return the seconds of a number of global steps."""
        return self.step_s.scaled(steps)


def forecast_scenario(scenario: Scenario, source: StepForecaster) -> Forecast:
    """Forecast the training of a scenario.

    Args:
        scenario: a loaded scenario that trains.
        source: source of the seconds of steps.

    Raises:
        InputError: the strategy cannot be simulated.
    """
    strategy, steps_s = require_predictable(scenario), source.forecast(scenario)
    usual = [each.usual_s for each in steps_s.seconds]

    def simulate(sim_input: SimulationInput) -> float:
        return strategy.simulate(sim_input).makespan_s / sim_input.work.steps

    def plan(step_s: Sequence[float], steps: int) -> SimulationInput:
        return plan_training(scenario, step_s, source.messages, source.handling, steps)

    steps = STEADY_STEPS
    if scenario.changes:
        steps = count_steps(scenario.workload.stop, simulate(plan(usual, steps)))
    base = plan(usual, steps)
    usual_s = simulate(base)
    # A bound of every step gives a bound of the training: no rule is faster with slower steps.
    low_s, high_s = (
        simulate(plan([getattr(each, end) for each in steps_s.seconds], steps))
        for end in ("low_s", "high_s")
    )
    without = {
        Limit.SERVER: replace(base, server_share=float("inf")),
        Limit.LINKS: replace(base, network=SimulatedNetwork(_FreeHops())),
        Limit.SLOW_WORKERS: plan([min(usual)] * len(usual), steps),
    }
    if not scenario.workload.strategy.uses_server:
        del without[Limit.SERVER]
    return Forecast(
        workers=len(scenario.ranks),
        samples=scenario.workload.count_worker_samples(len(scenario.ranks)),
        step_s=StepSeconds(min(low_s, usual_s), usual_s, max(high_s, usual_s)),
        batch_size=scenario.workload.batch_size,
        gains={burden: 1 - simulate(each) / usual_s for burden, each in without.items()},
        cost_per_hour=price_hosts(scenario),
        slowest=scenario.ranks[usual.index(max(usual))].name,
        notes=steps_s.notes,
    )


def find_forecast_knee(forecasts: Sequence[Forecast]) -> float | None:
    """Return the number of workers from which the speed hardly grows; None if it still does."""
    if len(forecasts) < 2:
        return None
    return find_knee({each.workers: each.samples_per_s for each in forecasts})


def count_steps(stop: Stop, step_s: float) -> int:
    """Return the number of steps to simulate, so that timed changes take part as they will.

    Args:
        stop: rules that end the training.
        step_s: seconds of a step, as far as they are known before.
    """
    wanted = [MAX_STEPS]
    if stop.steps is not None:
        wanted.append(stop.steps)
    if stop.time_s is not None:
        wanted.append(math.ceil(stop.time_s / step_s))
    return max(min(wanted), 1)


def price_hosts(scenario: Scenario, without: AbstractSet[str] = frozenset()) -> float:
    """Return the price of all hosts for an hour, by the prices of `objective`, as a run counts it.

    Args:
        scenario: a loaded scenario that trains.
        without: names of hosts that do not count.
    """
    prices = scenario.workload.objective.prices
    return sum(prices.get(host.layer, 0.0) for host in scenario.hosts if host.name not in without)


def require_predictable(scenario: Scenario) -> AlternativeStrategy:
    """Return the strategy of a scenario as the simulation knows it.

    Raises:
        InputError: the strategy or one of its options cannot be simulated.
    """
    spec = scenario.workload.strategy
    if spec.name not in STRATEGIES:
        raise InputError(
            f"{scenario.name}: a training with {spec.name} cannot be simulated — choose one of"
            f" {', '.join(STRATEGIES)}, for example with --set workload.strategy={STRATEGIES[0]}"
        )
    values = spec.model_dump()
    for option in ("compress", "balanced_batches", "defer"):
        if values.get(option) is not None:
            raise InputError(
                f"{scenario.name}: a training with {option} cannot be simulated yet — leave it out,"
                f" for example with --set workload.strategy={spec.name}"
            )
    if scenario.workload.stream is not None and scenario.workload.stream.arrivals:
        raise InputError(
            f"{scenario.name}: samples that arrive at a pace of their own cannot be simulated yet —"
            " leave it out with --set 'workload.stream.arrivals={}'"
        )
    return describe_strategy(spec.name, values)


class _FreeHops(Mapping[HopEnds, NetworkHop]):
    """Links that take no time, between any hosts."""

    def __getitem__(self, ends: HopEnds) -> NetworkHop:
        return NetworkHop(ends, float("inf"), 0.0)

    def __contains__(self, ends: object) -> bool:
        return True

    def __iter__(self) -> Iterator[HopEnds]:
        return iter(())

    def __len__(self) -> int:
        return 0
