"""Simulation of a scenario with up to millions of workers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from laggard.core.cost_model.step_seconds import StepSeconds
from laggard.core.errors import InputError
from laggard.core.simulation.crowd.workers import MAX_CROWD
from laggard.predict.forecast import require_predictable
from laggard.predict.host_steps import MachineSteps, RecordedSteps
from laggard.predict.planned_training import plan_training
from laggard.predict.simulation.crowd_absences import plan_absences
from laggard.predict.simulation.crowd_scenario import CrowdTraining
from laggard.scenario.load import Scenario, load_scenario

MAX_STEPS = 1_000_000
_QUANTILES = 2.319
"""Standard deviations between the 5 % and the 75 % quantile of a normal distribution."""


@dataclass(frozen=True)
class SimulationOptions:
    """Options of a simulation.

    Attributes:
        steps: number of steps.
        spread: standard deviation of the logarithm of a step's duration; that of the measured
            steps if None.
        seed: seed of the durations.
        recorded: runs whose steps are known; if empty, steps are measured on this machine.
    """

    steps: int = 100
    spread: float | None = None
    seed: int = 1
    recorded: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.steps <= MAX_STEPS:
            raise InputError(f"{self.steps} steps, which must be 1 to {MAX_STEPS:,}")
        if self.spread is not None and not 0 <= self.spread <= 3:
            raise InputError(
                f"the spread of steps is {self.spread} and must be from 0 to 3 — 0.1 means that"
                " steps usually differ by a tenth from their median"
            )


@dataclass(frozen=True)
class SimulatedScale:
    """Simulated training of one size.

    Attributes:
        workers: number of workers.
        counts: number of workers by tier, of the tiers that were changed.
        step_s: virtual seconds of a step in which every worker takes one.
        samples_per_s: speed of the training.
        efficiency: speed of a worker, relative to the scenario's own size.
        computed_share: part of the time in which a worker of each class computes, by its first
            host.
        relative_error: estimated error, if only a part of the workers was played.
    """

    workers: int
    counts: Mapping[str, int]
    step_s: float
    samples_per_s: float
    efficiency: float
    computed_share: Mapping[str, float]
    relative_error: float


@dataclass(frozen=True)
class SimulatedScenario:
    """Simulated trainings of a scenario.

    Attributes:
        scenario: the scenario.
        samples: samples of one worker in a step, at any size.
        spread: standard deviation of the logarithm of a step's duration.
        scales: the scenario's own size, then the others.
    """

    scenario: Scenario
    samples: int
    spread: float
    scales: tuple[SimulatedScale, ...]


def parse_scales(texts: Sequence[str]) -> tuple[Mapping[str, int], ...]:
    """Parse sizes such as `edge=1000000`, or several: `edge=1000,1000000`.

    Tiers that are given separately are combined: the k-th number of one with the k-th of another;
    a single number goes with all of them.

    Raises:
        InputError: a text is not a tier and numbers, or the tiers have different numbers of them.

    Examples:
        >>> parse_scales(["edge=10,1000", "fog=4"])
        ({'edge': 10, 'fog': 4}, {'edge': 1000, 'fog': 4})
    """
    found: dict[str, tuple[int, ...]] = {}
    for text in texts:
        tier, _, numbers = text.partition("=")
        parts = numbers.split(",")
        if not tier or not all(part.isascii() and part.isdigit() for part in parts):
            raise InputError(f"--scale {text}: no tier and numbers — write --scale edge=1000000")
        if tier in found:
            raise InputError(f"--scale {text}: {tier} has numbers already — give them once")
        if any(len(part) > 9 or not 1 <= int(part) <= MAX_CROWD for part in parts):
            raise InputError(f"--scale {text}: numbers must be 1 to {MAX_CROWD:,}")
        found[tier] = tuple(int(part) for part in parts)
    lengths = {len(numbers) for numbers in found.values()} - {1}
    if len(lengths) > 1:
        raise InputError(
            "--scale: the tiers have different numbers of sizes — give as many for each, or one"
        )
    return tuple(
        {tier: numbers[place % len(numbers)] for tier, numbers in found.items()}
        for place in range(max(lengths, default=1 if found else 0))
    )


def simulate_scenario(
    folder: Path,
    overrides: Sequence[str],
    scales: Sequence[Mapping[str, int]],
    options: SimulationOptions,
) -> SimulatedScenario:
    """Simulate a scenario with other numbers of workers.

    Args:
        folder: folder of the scenario.
        overrides: overrides of the command line.
        scales: numbers of workers by tier, of each size.
        options: options of the simulation.

    Raises:
        InputError: the scenario trains nothing, or cannot be simulated.
        ScenarioError: the scenario is wrong.

    Examples:
        >>> from laggard.predict.simulation.simulate_scenario import SimulationOptions
        >>> options = SimulationOptions(steps=2)
        >>> found = simulate_scenario(Path("my-continuum"), [], [{"edge": 10_000}], options)
        >>> found.scales[1].counts
        {'edge': 10000}
    """
    scenario = load_scenario(folder, overrides)
    if not scenario.trains:
        raise InputError(
            f"{folder}: {scenario.untrained_reason} — give a scenario whose workload.yaml has a"
            " model and a dataset, or use laggard plan"
        )
    strategy = require_predictable(scenario)
    source = (
        RecordedSteps.read(options.recorded, scenario.workload)
        if options.recorded
        else MachineSteps.measure([scenario])
    )
    seconds = source.forecast(scenario).seconds
    spread = _measure_spread(seconds) if options.spread is None else options.spread
    training = CrowdTraining.of(
        strategy,
        plan_training(
            scenario,
            [each.usual_s for each in seconds],
            source.messages,
            source.handling,
            options.steps,
        ),
        spread,
        plan_absences(scenario),
    )
    samples = scenario.workload.count_worker_samples(len(scenario.ranks))
    found: list[SimulatedScale] = []
    for counts in ({}, *scales):
        crowd = training.scale(counts)
        result = training.simulate(counts, options.steps, np.random.default_rng(options.seed))
        speed = result.steps * samples / result.makespan_s
        per_worker = speed / crowd.workers
        found.append(
            SimulatedScale(
                workers=crowd.workers,
                counts=counts,
                step_s=result.makespan_s / options.steps,
                samples_per_s=speed,
                efficiency=per_worker / (found[0].samples_per_s / found[0].workers)
                if found
                else 1.0,
                computed_share={
                    each.name: float(share)
                    for each, share in zip(crowd.classes, result.computed_share, strict=True)
                },
                relative_error=result.relative_error,
            )
        )
    return SimulatedScenario(scenario, samples, spread, tuple(found))


def _measure_spread(seconds: Sequence[StepSeconds]) -> float:
    """Return the spread of steps from the quantiles of the measured ones."""
    return float(
        np.median(
            [
                math.log(each.high_s / each.low_s) / _QUANTILES
                if math.isfinite(each.high_s) and each.low_s > 0
                else 0.0
                for each in seconds
            ]
        )
    )
