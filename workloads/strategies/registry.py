"""How the workers' updates become one model: one file and one class each, by the strategy's name.

This module imports no torch until a strategy is asked for, so that a scenario is checked quickly.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from laggard.workloads.strategies.base.parameters import Parameters

if TYPE_CHECKING:
    from laggard.workloads.strategies.base.strategy import (
        PeerStrategy,
        ServerStrategy,
        Strategy,
        TrainingContext,
    )
    from laggard.workloads.strategies.server.update_rule import ServerUpdateRule

STRATEGY_CLASSES = {
    "allreduce": "AllReduce",
    "local_sgd": "LocalSGD",
    "hierarchical": "Hierarchical",
    "diloco": "DiLoCo",
    "parameter_server": "ParameterServer",
    "asynchronous": "Asynchronous",
    "bounded_staleness": "BoundedStaleness",
    "backup_workers": "BackupWorkers",
    "ring_allreduce": "RingAllReduce",
    "gossip": "Gossip",
    "ad_psgd": "ADPSGD",
    "partial_reduce": "PartialReduce",
    "hop": "Hop",
    "fast_links": "FastLinks",
    "overlap_local_sgd": "OverlapLocalSGD",
    "adaptive": "Adaptive",
}


def create_strategy(parameters: Parameters, context: TrainingContext) -> Strategy:
    """One rank's side of a strategy whose ranks take the same steps.

    Args:
        parameters: what `workload.yaml` says of it.
        context: what the rank trains with; all ranks call this together, since it may open
            connections.
    """
    return cast("Strategy", _load_strategy_class(parameters)(parameters, context))


def create_server_strategy(parameters: Parameters, context: TrainingContext) -> ServerStrategy:
    """One rank's side of a strategy that has a server (see `create_strategy`)."""
    return cast("ServerStrategy", _load_strategy_class(parameters)(parameters, context))


def create_peer_strategy(parameters: Parameters, context: TrainingContext) -> PeerStrategy:
    """One rank's side of a strategy without a server whose ranks take steps of their own (see
    `create_strategy`).
    """
    return cast("PeerStrategy", _load_strategy_class(parameters)(parameters, context))


def create_server_rule(parameters: Parameters, world_size: int) -> ServerUpdateRule:
    """The server's side of a strategy that has one."""
    rule: ServerUpdateRule = _load_strategy_class(parameters).rule(parameters, world_size)  # type: ignore[attr-defined]
    return rule


def _load_strategy_class(parameters: Parameters) -> Callable[..., object]:
    name = str(parameters.model_dump()["name"])
    loaded: Callable[..., object] = getattr(
        importlib.import_module(f"laggard.workloads.strategies.{name}"), STRATEGY_CLASSES[name]
    )
    return loaded
