"""Recommendation for a scenario: which machines, how many, and which strategy.

Every candidate is forecast, and forecasts are uncertain. So the answer has a probability, and names
the candidate whose measurement would help most. A user measures it with a run, tells the result,
and asks again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from laggard.core.cost_model.arrays import FloatArray
from laggard.core.errors import InputError
from laggard.predict.forecast import require_predictable
from laggard.predict.forecast_output import list_notes
from laggard.predict.host_steps import MachineSteps
from laggard.predict.recommendation.beliefs import Beliefs
from laggard.predict.recommendation.candidates import (
    MachineCandidate,
    Setting,
    describe_traits,
    forecast_candidates,
    require_few,
)
from laggard.predict.recommendation.choice import (
    Budget,
    Choice,
    choose,
    find_useful_measurement,
)
from laggard.predict.recommendation.memory_need import measure_memory_need
from laggard.predict.recommendation.price_list import PriceList, keep_known_speeds
from laggard.predict.worker_numbers import WorkerNumbers, find_service, load_with_numbers
from laggard.scenario.load import Scenario, load_scenario

MAX_MEASUREMENTS = 3
"""Number of measurements after which no further one is asked for."""

LOW, HIGH = 0.05, 0.95
"""Quantiles of an interval."""

_USUAL_NUMBERS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class RecommendationOptions:
    """Budget, prices and everything else that a recommendation starts from.

    Attributes:
        budget: limits of the training.
        prices: machines that can be had.
        numbers: numbers of machines of a tier; 1 to 16 of the only one with workers if None.
        strategies: names of strategies that are compared; only the scenario's if empty.
        speeds: speed of types of machines, in cores of this machine, where it is known.
        measured: measured seconds of a step, by the name of a candidate.

    Examples:
        >>> from laggard.predict.recommendation.choice import Budget
        >>> from laggard.predict.recommendation.price_list import list_grid5000_prices
        >>> options = RecommendationOptions(Budget(3600.0), list_grid5000_prices("rennes"))
        >>> options.strategies
        ()
    """

    budget: Budget
    prices: PriceList
    numbers: WorkerNumbers | None = None
    strategies: tuple[str, ...] = ()
    speeds: Mapping[str, float] = field(default_factory=dict)
    measured: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Recommendation:
    """Recommendation for a scenario.

    Attributes:
        scenario: the scenario as it is.
        candidates: ways to train, N of them.
        times_s: low, median and high seconds of each, [3, N].
        choice: the chosen one, and the probabilities of each to be within the budget.
        front: numbers of those that no other beats in both median time and cost, fastest first.
        budget: limits of the training.
        unit: unit of prices; empty if it is not known.
        measured: measured seconds of a training by the candidate's number.
        useful: number of the candidate whose measurement would help most; None if none would.
        notes: sentences about what the recommendation does not know.
    """

    scenario: Scenario
    candidates: tuple[MachineCandidate, ...]
    times_s: FloatArray
    choice: Choice
    front: tuple[int, ...]
    budget: Budget
    unit: str
    measured: Mapping[int, float]
    useful: int | None
    notes: tuple[str, ...]

    @property
    def steps(self) -> int:
        """Return the steps of the training."""
        steps = self.scenario.workload.stop.steps
        assert steps is not None
        return steps

    @property
    def nearest(self) -> int:
        """Return the candidate that exceeds the budget least, or is most below it."""
        costs = self.times_s[1] * price_seconds(self.candidates)
        return int(
            np.maximum(
                self.times_s[1] / self.budget.within_s, costs / self.budget.cost_below
            ).argmin()
        )

    def costs(self, number: int) -> tuple[float, float, float]:
        """Return the low, median and high cost of a candidate."""
        price = self.candidates[number].price_per_hour / 3600
        low, usual, high = (float(each) * price for each in self.times_s[:, number])
        return low, usual, high


def recommend_scenario(
    folder: Path, overrides: Sequence[str], options: RecommendationOptions
) -> Recommendation:
    """Recommend machines and a strategy for the training of a scenario.

    Args:
        folder: folder of the scenario, whose `workload.stop` must have `steps`.
        overrides: overrides of the command line.
        options: what the recommendation starts from.

    Raises:
        InputError: no machine can do the training, or an option does not fit the scenario.
        ScenarioError: the scenario is wrong.

    Examples:
        >>> from laggard.predict.recommendation.choice import Budget
        >>> from laggard.predict.recommendation.price_list import list_grid5000_prices
        >>> from laggard.predict.recommendation.recommend_scenario import RecommendationOptions
        >>> from laggard.predict.worker_numbers import WorkerNumbers
        >>> options = RecommendationOptions(
        ...     Budget(within_s=36_000.0), list_grid5000_prices("rennes"), WorkerNumbers(None, (2,))
        ... )
        >>> found = recommend_scenario(
        ...     Path("my-continuum"), ['workload.placement.workers=["edge.*"]'], options
        ... )
        >>> found.choice.candidate is not None
        True
    """
    scenario = load_scenario(folder, overrides)
    _require_steps(scenario)
    settings = tuple(_list_settings(folder, overrides, scenario, options))
    prices = keep_known_speeds(options.prices, options.speeds)
    require_few(len(settings), len(prices.instances))
    candidates = tuple(
        forecast_candidates(
            settings,
            prices,
            MachineSteps.measure([each.scenario for each in settings]),
            options.speeds,
            measure_memory_need(scenario.workload),
        )
    )
    if not candidates:
        raise InputError(
            f"{scenario.name}: no machine of the price list has the memory for a worker, or there"
            " are too few of them — give larger machines, or a smaller batch with --set"
            " workload.batch_size=…"
        )
    notes = (*prices.notes, *list_notes(scenario, ()), *_list_early_ends(scenario))
    measured = _number_measured(scenario, candidates, options.measured)
    beliefs = Beliefs.draw(describe_traits(candidates)).with_measurements(measured)
    per_s, budget = price_seconds(candidates), options.budget
    times_s = beliefs.quantiles_s(LOW, 0.5, HIGH)
    return Recommendation(
        scenario=scenario,
        candidates=candidates,
        times_s=times_s,
        choice=choose(beliefs, per_s, budget),
        front=_find_front(times_s[1], times_s[1] * per_s),
        budget=budget,
        unit=prices.unit,
        measured=measured,
        useful=(
            find_useful_measurement(beliefs, per_s, budget, measured)
            if len(measured) < MAX_MEASUREMENTS
            else None
        ),
        notes=notes,
    )


def price_seconds(candidates: Sequence[MachineCandidate]) -> FloatArray:
    """Return the price of a second of each candidate, [N]."""
    return np.array([each.price_per_hour / 3600 for each in candidates])


def _require_steps(scenario: Scenario) -> None:
    if not scenario.trains:
        raise InputError(
            f"{scenario.name}: {scenario.untrained_reason} — give a scenario whose workload.yaml"
            " has a model and a dataset"
        )
    if scenario.workload.stop.steps is None:
        raise InputError(
            f"{scenario.name}: workload.stop names no steps, and the steps to an accuracy are not"
            " predicted — give their number, for example with --set workload.stop.steps=2000"
        )
    require_predictable(scenario)


def _list_early_ends(scenario: Scenario) -> Iterator[str]:
    stop = scenario.workload.stop
    rules = [name for name in ("accuracy", "time_s") if getattr(stop, name) is not None]
    if rules:
        names = " and ".join(rule.removesuffix("_s") for rule in rules)
        yield f"the training may end before its {stop.steps} steps, by {names} of workload.stop"


def _list_settings(
    folder: Path, overrides: Sequence[str], base: Scenario, options: RecommendationOptions
) -> Iterator[Setting]:
    numbers = options.numbers or WorkerNumbers(None, _USUAL_NUMBERS)
    place = find_service(base, numbers.tier)
    for name in options.strategies or (base.workload.strategy.name,):
        # The scenario's own strategy keeps its options.
        is_own = name == base.workload.strategy.name
        own = [*overrides, *([] if is_own else [f"workload.strategy={name}"])]
        for number, scenario in zip(
            numbers.numbers, load_with_numbers(folder, own, numbers), strict=True
        ):
            require_predictable(scenario)
            replaced = frozenset(
                rank.name
                for rank in scenario.ranks
                if (rank.layer_id - 1, rank.service_id - 1) == place
            )
            yield Setting(scenario, replaced, number)


def _number_measured(
    scenario: Scenario, candidates: Sequence[MachineCandidate], measured: Mapping[str, float]
) -> dict[int, float]:
    """Return the seconds of whole trainings by the numbers of candidates."""
    numbers = {each.name: number for number, each in enumerate(candidates)}
    unknown = next((name for name in measured if name not in numbers), None)
    if unknown is not None:
        raise InputError(
            f"--measured {unknown}: is none of the {len(candidates)} candidates — write"
            f" TYPE:NUMBER:STRATEGY=SECONDS, for example {candidates[0].name}=0.25"
        )
    steps = scenario.workload.stop.steps
    assert steps is not None
    return {numbers[name]: seconds * steps for name, seconds in measured.items()}


def _find_front(times_s: FloatArray, costs: FloatArray) -> tuple[int, ...]:
    """Return the candidates that no other beats in both time and cost, fastest first."""
    front, least = [], math.inf
    for number in np.lexsort((costs, times_s)).tolist():
        if costs[number] < least:
            front.append(number)
            least = costs[number]
    return tuple(front)
