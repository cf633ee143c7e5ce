"""Strategies that can be simulated, with their parameters and rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from laggard.core.errors import InputError
from laggard.core.rules.backup_workers import BackupWorkersRule
from laggard.core.rules.bounded_staleness import BoundedStalenessRule
from laggard.core.rules.graph import Graph
from laggard.core.rules.hop import NeighborBounds
from laggard.core.simulation.strategies.groups import (
    IndependentRanks,
    PartialReduceSimulation,
)
from laggard.core.simulation.strategies.lockstep import (
    simulate_all_reduce,
    simulate_hierarchical,
)
from laggard.core.simulation.strategies.neighbors import NeighborSimulation
from laggard.core.simulation.strategies.server import ServerSimulation
from laggard.core.simulation.training import SimulationInput, SimulationResult

Value = int | str
Values = Mapping[str, Value]

ALL_REDUCE_STRATEGIES = frozenset({"allreduce", "local_sgd", "diloco"})
"""Strategies whose ranks all-reduce the whole model with the same library, so that the measured
all-reduces of one are valid for the others."""


@dataclass(frozen=True)
class _StrategyKind:
    """Strategy that can be simulated.

    Attributes:
        defaults: parameters with their default values.
        simulate: function of the input, the integer parameters and the graph.
    """

    defaults: Values
    simulate: Callable[[SimulationInput, Mapping[str, int], Graph], SimulationResult]


# Defaults must equal those of the strategies' parameters in `workload.yaml`.
_BOUNDED = {"staleness": 4, "backups": 0, "skip": 4, "max_iteration_gap": 8}
_KINDS: Mapping[str, _StrategyKind] = {
    "allreduce": _StrategyKind({}, lambda sim_input, _, __: simulate_all_reduce(sim_input, 1)),
    "local_sgd": _StrategyKind(
        {"steps": 8, "after": 0},
        lambda sim_input, n, _: simulate_all_reduce(sim_input, n["steps"], n["after"]),
    ),
    "diloco": _StrategyKind(
        {"steps": 50}, lambda sim_input, n, _: simulate_all_reduce(sim_input, n["steps"])
    ),
    "hierarchical": _StrategyKind(
        {"tier_steps": 1, "wan_steps": 8},
        lambda sim_input, n, _: simulate_hierarchical(sim_input, n["tier_steps"], n["wan_steps"]),
    ),
    "parameter_server": _StrategyKind(
        {},
        lambda sim_input, _, __: ServerSimulation(
            sim_input, BoundedStalenessRule(sim_input.world, 0)
        ).simulate(),
    ),
    "asynchronous": _StrategyKind(
        {},
        lambda sim_input, _, __: ServerSimulation(
            sim_input, BoundedStalenessRule(sim_input.world, None)
        ).simulate(),
    ),
    "bounded_staleness": _StrategyKind(
        {"staleness": 4},
        lambda sim_input, n, _: ServerSimulation(
            sim_input, BoundedStalenessRule(sim_input.world, n["staleness"])
        ).simulate(),
    ),
    "backup_workers": _StrategyKind(
        {"backups": 1},
        lambda sim_input, n, _: ServerSimulation(
            sim_input, BackupWorkersRule(sim_input.world, n["backups"])
        ).simulate(),
    ),
    "gossip": _StrategyKind(
        {"graph": "ring"},
        lambda sim_input, _, graph: NeighborSimulation(sim_input, NeighborBounds(graph)).simulate(),
    ),
    "hop": _StrategyKind(
        {"graph": "ring", **_BOUNDED},
        lambda sim_input, n, graph: NeighborSimulation(
            sim_input, NeighborBounds(graph, **n)
        ).simulate(),
    ),
    "partial_reduce": _StrategyKind(
        {"group": 2, "rounds": 16},
        lambda sim_input, n, _: PartialReduceSimulation(
            sim_input, n["group"], n["rounds"]
        ).simulate(),
    ),
    "ad_psgd": _StrategyKind({}, lambda sim_input, _, __: IndependentRanks(sim_input).simulate()),
    "overlap_local_sgd": _StrategyKind(
        {}, lambda sim_input, _, __: IndependentRanks(sim_input).simulate()
    ),
}
# Smallest values of parameters; all others start at 0.
_MIN_VALUES = {
    "steps": 1,
    "tier_steps": 1,
    "wan_steps": 1,
    "group": 2,
    "rounds": 1,
    "max_iteration_gap": 1,
}
STRATEGIES = tuple(_KINDS)


@dataclass(frozen=True)
class AlternativeStrategy:
    """Strategy under which a run is simulated.

    Attributes:
        name: one of `STRATEGIES`.
        parameters: parameters as in `workload.yaml`; absent ones have the defaults of that file.
    """

    name: str
    parameters: Values = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name not in _KINDS:
            raise InputError(
                f"{self.name} is no strategy that can be simulated — use one of"
                f" {', '.join(STRATEGIES)}"
            )
        known = _KINDS[self.name].defaults
        for name, value in self.parameters.items():
            if name not in known:
                fix = f"use one of {', '.join(known)}" if known else "remove it"
                raise InputError(
                    f"{self.name}: its duration does not depend on a parameter {name} — {fix}"
                )
            self._check(name, value, known[name])

    def _check(self, name: str, value: Value, default: Value) -> None:
        if isinstance(default, str):
            if value not in ("ring", "complete"):
                raise InputError(f"{self.name}: {name} is {value} and must be ring or complete")
            return
        least = _MIN_VALUES.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(
                f"{self.name}: {name} is {value} and must be an integer of at least {least}"
            )

    @property
    def settings(self) -> Values:
        """Return all parameters, given and default ones."""
        return {**_KINDS[self.name].defaults, **self.parameters}

    @property
    def label(self) -> str:
        """Return name and parameters as text."""
        return ", ".join([self.name, *(f"{name} {value}" for name, value in self.settings.items())])

    def simulate(self, sim_input: SimulationInput) -> SimulationResult:
        """Simulate the training of a run under this strategy."""
        numbers = {name: value for name, value in self.settings.items() if isinstance(value, int)}
        graph: Graph = "complete" if self.settings.get("graph") == "complete" else "ring"
        return _KINDS[self.name].simulate(sim_input, numbers, graph)


def describe_strategy(name: str, parameters: Mapping[str, object]) -> AlternativeStrategy:
    """Return the strategy with those parameters that its duration depends on.

    Raises:
        InputError: no such strategy can be simulated.
    """
    known = _KINDS[name].defaults if name in _KINDS else {}
    given = {
        key: value
        for key, value in parameters.items()
        if key in known and isinstance(value, int | str)
    }
    return AlternativeStrategy(name, given)
