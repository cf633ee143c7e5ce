"""How the workers' updates become one model: one file and one class each, by the strategy's name.

This module imports no torch until a strategy is asked for, so that a scenario is checked quickly.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from laggard.workloads.strategies.parameters import Parameters

if TYPE_CHECKING:
    from laggard.workloads.strategies.server_rule import ServerRule
    from laggard.workloads.strategies.strategy import PeerStrategy, Seat, ServedStrategy, Strategy

CLASSES = {
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


def take_up(parameters: Parameters, seat: Seat) -> Strategy:
    """One rank's side of a strategy whose ranks take the same steps.

    Args:
        parameters: what `workload.yaml` says of it.
        seat: what the rank trains with; all ranks call this together, since it may open
            connections.
    """
    return cast("Strategy", _class(parameters)(parameters, seat))


def take_up_with_server(parameters: Parameters, seat: Seat) -> ServedStrategy:
    """One rank's side of a strategy that has a server (see `take_up`)."""
    return cast("ServedStrategy", _class(parameters)(parameters, seat))


def take_up_among_peers(parameters: Parameters, seat: Seat) -> PeerStrategy:
    """One rank's side of a strategy without a server whose ranks take steps of their own (see
    `take_up`).
    """
    return cast("PeerStrategy", _class(parameters)(parameters, seat))


def server_rule(parameters: Parameters, world_size: int) -> ServerRule:
    """The server's side of a strategy that has one."""
    rule: ServerRule = _class(parameters).rule(parameters, world_size)  # type: ignore[attr-defined]
    return rule


def _class(parameters: Parameters) -> Callable[..., object]:
    name = str(parameters.model_dump()["name"])
    found: Callable[..., object] = getattr(
        importlib.import_module(f"laggard.workloads.strategies.{name}"), CLASSES[name]
    )
    return found
