"""Recommendations in generated catalogs of machines, each with a hidden truth.

    python benchmarks/recommendations.py [CATALOGS]

A training of one of three models, by one of two strategies, is simulated on 1 to 16 edge hosts of
twelve speeds. A catalog has 6 to 40 types of machines in families, with prices. In truth the cores
are faster or slower than the forecast believes: all of them, those of a family, and those of a
type. Many cores help less, or more. Each candidate has an error of its own. There are three levels
of this; the last has the errors of `predictions.md`. None of the distributions is the one that
beliefs assume. One catalog
in five has a budget that nothing meets. Up to three candidates are measured, those that are asked
for. For comparison, every candidate is measured, with the same error.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import numpy as np
from three_layers import write_scenario

from laggard.core.cost_model.arrays import FloatArray
from laggard.predict.host_steps import MachineSteps
from laggard.predict.recommendation.beliefs import Beliefs, CandidateTraits
from laggard.predict.recommendation.candidates import Setting, forecast_time_s
from laggard.predict.recommendation.choice import Budget, choose, find_useful_measurement
from laggard.scenario.load import Scenario, load_scenario

CATALOGS = 1000
MEASUREMENTS = 3
ERROR = 0.02
"""Relative standard error of a measurement."""
MODELS = ("mlp", "cnn", "resnet8")
STRATEGIES = ("allreduce", "parameter_server")
NUMBERS = (1, 2, 4, 8, 16)
SPEEDS = np.geomspace(0.1, 200.0, 16)
SIZES = (1, 2, 4, 8, 16, 32)

_STEPS = 20_000
_WORKLOAD = """\
model: {model}
dataset: digits
batch_size: 128
strategy: {strategy}
placement: {{workers: ["edge.*"], server: "cloud.*"}}
stop: {{steps: {steps}}}
"""


@dataclass(frozen=True)
class Hidden:
    """What the forecast does not know, as largest logarithms.

    Attributes:
        name: name in the table.
        family: of the speed of a family.
        instance: of the speed of a type.
        own: of a candidate's time.
    """

    name: str
    family: float
    instance: float
    own: float


LEVELS = (
    Hidden("only how fast all machines are", 0.0, 0.0, 0.02),
    Hidden("families 15 %, types 5 %, candidates 8 %", 0.15, 0.05, 0.08),
    Hidden("families 30 %, types 12 %, candidates 16 %", 0.3, 0.12, 0.16),
)


@dataclass(frozen=True)
class Training:
    """Forecast times of a training.

    Attributes:
        times_s: seconds by number of machines and speed, [len(NUMBERS), len(SPEEDS)].
    """

    times_s: FloatArray

    def time_s(self, number: int, speed: float) -> float:
        """Return the seconds on machines of a speed; `number` is a position in NUMBERS."""
        logs = np.interp(np.log(speed), np.log(SPEEDS), np.log(self.times_s[number]))
        return float(np.exp(logs))


@dataclass(frozen=True)
class Catalog:
    """Catalog with its truth.

    Attributes:
        traits: forecasts, and what candidates have in common.
        true_s: true seconds of each candidate, [N].
        price_per_s: price of a second of each candidate, [N].
        budget: limits.
    """

    traits: CandidateTraits
    true_s: FloatArray
    price_per_s: FloatArray
    budget: Budget

    @property
    def cost(self) -> FloatArray:
        """Return the true cost of each candidate, [N]."""
        return self.true_s * self.price_per_s

    @property
    def feasible(self) -> Sequence[int]:
        """Return the candidates that are within the budget in truth."""
        within = (self.true_s <= self.budget.within_s) & (self.cost <= self.budget.cost_below)
        return [int(each) for each in np.flatnonzero(within)]


def simulate_trainings() -> Iterator[Training]:
    """Yield the forecast times of every model and strategy."""
    for model in MODELS:
        for strategy in STRATEGIES:
            with tempfile.TemporaryDirectory() as name:
                scenarios = [_load(Path(name), model, strategy, each) for each in NUMBERS]
            steps = MachineSteps.measure(scenarios)
            times_s = [
                [forecast_time_s(_replace_edge(each, n), steps, float(s)) for s in SPEEDS]
                for each, n in zip(scenarios, NUMBERS, strict=True)
            ]
            yield Training(np.array(times_s))


def draw_catalog(rng: np.random.Generator, training: Training, hidden: Hidden) -> Catalog:
    """Draw a catalog, its truth and a budget."""
    shared, gamma = np.exp(rng.uniform(-0.7, 0.7)), rng.uniform(0.75, 1.05)
    curves, true, prices, families, types, cores, machines = [], [], [], [], [], [], []
    kinds = 0
    for family in range(rng.integers(2, 9)):
        family_speed = np.exp(rng.uniform(-hidden.family, hidden.family))
        core_price = 0.04 * np.exp(rng.uniform(-0.4, 0.4))
        for size in sorted(rng.choice(SIZES, rng.integers(2, 6), replace=False).tolist()):
            type_speed = np.exp(rng.uniform(-hidden.instance, hidden.instance))
            price = core_price * size * np.exp(rng.uniform(-0.1, 0.1))
            for position, number in enumerate(NUMBERS):
                speed = size**gamma * shared * family_speed * type_speed
                curves.append(np.log(training.times_s[position]))
                own = np.exp(rng.uniform(-hidden.own, hidden.own))
                true.append(training.time_s(position, speed) * own)
                prices.append(price * number / 3600)
                families.append(family)
                types.append(kinds)
                cores.append(float(size))
                machines.append(float(number))
            kinds += 1
    traits = CandidateTraits(
        speeds=np.log(SPEEDS),
        seconds=np.array(curves),
        own_speeds=np.log(cores),
        families=families,
        instances=types,
        cores=np.array(cores),
        machines=np.array(machines),
    )
    true_s, price_per_s = np.array(true), np.array(prices)
    return Catalog(traits, true_s, price_per_s, _draw_budget(rng, true_s, true_s * price_per_s))


def recommend(catalog: Catalog, rng: np.random.Generator) -> tuple[int | None, int]:
    """Return the chosen candidate after up to three measurements, and their number."""
    prior = beliefs = Beliefs.draw(catalog.traits)
    measured: dict[int, float] = {}
    while len(measured) < MEASUREMENTS:
        wanted = find_useful_measurement(beliefs, catalog.price_per_s, catalog.budget, measured)
        if wanted is None:
            break
        measured[wanted] = float(catalog.true_s[wanted] * np.exp(rng.normal(0, ERROR)))
        beliefs = prior.with_measurements(measured)
    return choose(beliefs, catalog.price_per_s, catalog.budget).candidate, len(measured)


def find_cheapest_measured(catalog: Catalog, rng: np.random.Generator) -> int | None:
    """Return the cheapest feasible candidate by one measurement of each, if there is any."""
    times_s = catalog.true_s * np.exp(rng.normal(0, ERROR, len(catalog.true_s)))
    costs = times_s * catalog.price_per_s
    budget = catalog.budget
    within = (times_s <= budget.within_s) & (costs <= budget.cost_below)
    return int(np.argmin(np.where(within, costs, np.inf))) if within.any() else None


def main() -> None:
    """Print how often the cheapest feasible candidate was chosen, and the regret otherwise."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else CATALOGS
    trainings = tuple(simulate_trainings())
    with ProcessPoolExecutor() as pool:
        for level, hidden in enumerate(LEVELS):
            numbers = range(level, count, len(LEVELS))
            chosen = [trainings[number // len(LEVELS) % len(trainings)] for number in numbers]
            tried = pool.map(_try_catalog, numbers, chosen, repeat(hidden), chunksize=8)
            _print_level(hidden, list(tried))


def _print_level(hidden: Hidden, ends: Sequence[End]) -> None:
    print(f"{hidden.name}: {len(ends)} catalogs", flush=True)
    for what, many in Counter(each.what for each in ends).most_common():
        print(f"  {what}: {many}")
    answerable = [each.found_by_all for each in ends if each.found_by_all is not None]
    print(f"  cheapest, if all are measured: {sum(answerable)} of {len(answerable)}")
    print("  measurements:", dict(sorted(Counter(each.measured for each in ends).items())))
    regrets = [each.regret for each in ends if each.regret]
    if regrets:
        found = np.round(np.quantile(regrets, (0.5, 0.9, 1.0)), 3).tolist()
        print(f"  regret of another: {found}; {sum(r > 0.05 for r in regrets)} above 5 %")


@dataclass(frozen=True)
class End:
    """End of a search.

    Attributes:
        what: what was chosen.
        measured: number of measurements.
        regret: by how much more it costs than the cheapest.
        found_by_all: whether measurements of all candidates find the cheapest; None if nothing is
            feasible.
    """

    what: str
    measured: int
    regret: float = 0.0
    found_by_all: bool | None = None


def _try_catalog(number: int, training: Training, hidden: Hidden) -> End:
    rng = np.random.default_rng(number)
    catalog = draw_catalog(rng, training, hidden)
    chosen, measured = recommend(catalog, rng)
    feasible = catalog.feasible
    if not feasible:
        return End("infeasible said" if chosen is None else "infeasible not said", measured)
    best = min(feasible, key=lambda each: float(catalog.cost[each]))
    found = find_cheapest_measured(catalog, np.random.default_rng((number, 1))) == best
    if chosen is None:
        return End("infeasible said, and something is feasible", measured, found_by_all=found)
    if chosen not in feasible:
        return End("chosen is beyond the budget", measured, found_by_all=found)
    regret = float(catalog.cost[chosen] / catalog.cost[best] - 1)
    return End("another feasible one" if regret else "cheapest", measured, regret, found)


def _load(folder: Path, model: str, strategy: str, number: int) -> Scenario:
    text = _WORKLOAD.format(model=model, strategy=strategy, steps=_STEPS)
    own = write_scenario(folder / f"edge-{number}", 32, {"workflow": "[]\n", "workload": text})
    return load_scenario(own, [f"layers_services.layers.2.services.0.quantity={number}"])


def _replace_edge(scenario: Scenario, number: int) -> Setting:
    return Setting(scenario, frozenset(each.name for each in scenario.ranks), number)


def _draw_budget(rng: np.random.Generator, true_s: FloatArray, costs: FloatArray) -> Budget:
    if rng.random() < 0.2:
        return Budget(float(true_s.min() * rng.uniform(0.3, 0.9)))
    some = int(rng.integers(len(true_s)))
    within_s = float(true_s[some] * rng.uniform(1.0, 1.5))
    if rng.random() < 0.5:
        return Budget(within_s)
    return Budget(within_s, float(costs[some] * rng.uniform(1.0, 1.5)))


if __name__ == "__main__":
    main()
