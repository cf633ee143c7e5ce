"""Strategies that can be simulated, with their parameters and rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from laggard.core.errors import InputError
from laggard.core.rules.backup_workers import BackupWorkersRule
from laggard.core.rules.bounded_staleness import BoundedStalenessRule
from laggard.core.rules.graph import Graph
from laggard.core.rules.hop import NeighborBounds
from laggard.core.rules.server_rule import ServerUpdateRule
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


def _all_reduce(
    sim_input: SimulationInput, values: Mapping[str, int], _: Graph
) -> SimulationResult:
    return simulate_all_reduce(sim_input, values.get("steps", 1), values.get("after", 0))


def _with_neighbors(
    sim_input: SimulationInput, values: Mapping[str, int], graph: Graph
) -> SimulationResult:
    return NeighborSimulation(sim_input, NeighborBounds(graph, **values)).simulate()


def _independent(sim_input: SimulationInput, *_: object) -> SimulationResult:
    return IndependentRanks(sim_input).simulate()


def _with_server(
    defaults: Mapping[str, int], create_rule: Callable[[int, Mapping[str, int]], ServerUpdateRule]
) -> _StrategyKind:
    """Return a strategy with a server, whose rule is created for a number of ranks."""
    return _StrategyKind(
        defaults,
        lambda sim_input, values, _: ServerSimulation(
            sim_input, create_rule(sim_input.world, values)
        ).simulate(),
    )


# Defaults must equal those of the strategies' parameters in `workload.yaml`.
_KINDS: Mapping[str, _StrategyKind] = {
    "allreduce": _StrategyKind({}, _all_reduce),
    "local_sgd": _StrategyKind({"steps": 8, "after": 0}, _all_reduce),
    "diloco": _StrategyKind({"steps": 50}, _all_reduce),
    "hierarchical": _StrategyKind(
        {"tier_steps": 1, "wan_steps": 8},
        lambda sim_input, values, _: simulate_hierarchical(sim_input, **values),
    ),
    "parameter_server": _with_server({}, lambda world, _: BoundedStalenessRule(world, 0)),
    "asynchronous": _with_server({}, lambda world, _: BoundedStalenessRule(world, None)),
    "bounded_staleness": _with_server(
        {"staleness": 4}, lambda world, values: BoundedStalenessRule(world, values["staleness"])
    ),
    "backup_workers": _with_server(
        {"backups": 1}, lambda world, values: BackupWorkersRule(world, values["backups"])
    ),
    "gossip": _StrategyKind({"graph": "ring"}, _with_neighbors),
    "hop": _StrategyKind(
        {"graph": "ring", "staleness": 4, "backups": 0, "skip": 4, "max_iteration_gap": 8},
        _with_neighbors,
    ),
    "partial_reduce": _StrategyKind(
        {"group": 2, "rounds": 16},
        lambda sim_input, values, _: PartialReduceSimulation(
            sim_input, values["group"], values["rounds"]
        ).simulate(),
    ),
    "ad_psgd": _StrategyKind({}, _independent),
    "overlap_local_sgd": _StrategyKind({}, _independent),
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
    if parameters.get("defer") is not None:
        raise InputError(f"{name}: deferred averages cannot be simulated — leave out `defer`")
    known = _KINDS[name].defaults if name in _KINDS else {}
    given = {
        key: value
        for key, value in parameters.items()
        if key in known and isinstance(value, int | str)
    }
    return AlternativeStrategy(name, given)
