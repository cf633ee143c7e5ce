"""How the workers' updates become one model: one file and one class each, by the strategy's name.

This module imports no torch until a strategy is asked for, so that a scenario is checked quickly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from laggard.workloads.strategies.parameters import Parameters

if TYPE_CHECKING:
    from laggard.workloads.strategies.strategy import Seat, Strategy

CLASSES = {
    "allreduce": "AllReduce",
    "local_sgd": "LocalSGD",
    "hierarchical": "Hierarchical",
    "diloco": "DiLoCo",
}


def take_up(parameters: Parameters, seat: Seat) -> Strategy:
    """One rank's side of a strategy.

    Args:
        parameters: what `workload.yaml` says of it.
        seat: what the rank trains with; all ranks call this together, since it may open connections.
    """
    name = str(parameters.model_dump()["name"])
    module = importlib.import_module(f"laggard.workloads.strategies.{name}")
    strategy: Strategy = getattr(module, CLASSES[name])(parameters, seat)
    return strategy
