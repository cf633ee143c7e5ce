"""Registry of the strategies; imports nothing heavy.

A strategy is one module with its parameters, its documentation entry and its worker, plus one
entry of `STRATEGIES`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Union, get_args

from pydantic import Discriminator

from laggard.core.corrections.broken_rules import broken_rule
from laggard.core.corrections.names import suggest_name
from laggard.core.edits import remove_key, write_value
from laggard.workloads.compress.parameters import COMPRESSION_NAMES
from laggard.workloads.specification.section import named
from laggard.workloads.strategies.background.ad_psgd import ADPSGDParameters
from laggard.workloads.strategies.background.adaptive import AdaptiveParameters
from laggard.workloads.strategies.background.overlap_local_sgd import OverlapLocalSGDParameters
from laggard.workloads.strategies.base.parameters import BalancedParameters, Parameters
from laggard.workloads.strategies.collective.allreduce import AllReduceParameters
from laggard.workloads.strategies.collective.diloco import DiLoCoParameters
from laggard.workloads.strategies.collective.hierarchical import HierarchicalParameters
from laggard.workloads.strategies.collective.local_sgd import LocalSGDParameters
from laggard.workloads.strategies.collective.ring_allreduce import RingAllReduceParameters
from laggard.workloads.strategies.federated.parameters import FederatedParameters
from laggard.workloads.strategies.peer.fast_links import FastLinksParameters
from laggard.workloads.strategies.peer.gossip import GossipParameters
from laggard.workloads.strategies.peer.hop import HopParameters
from laggard.workloads.strategies.peer.partial_reduce import PartialReduceParameters
from laggard.workloads.strategies.pipeline.parameters import PlannedParameters
from laggard.workloads.strategies.server.asynchronous import AsynchronousParameters
from laggard.workloads.strategies.server.backup_workers import BackupWorkersParameters
from laggard.workloads.strategies.server.bounded_staleness import BoundedStalenessParameters
from laggard.workloads.strategies.server.parameter_server import ParameterServerParameters

STRATEGIES: tuple[type[Parameters], ...] = (
    AllReduceParameters,
    LocalSGDParameters,
    HierarchicalParameters,
    DiLoCoParameters,
    ParameterServerParameters,
    AsynchronousParameters,
    BoundedStalenessParameters,
    BackupWorkersParameters,
    RingAllReduceParameters,
    GossipParameters,
    ADPSGDParameters,
    PartialReduceParameters,
    HopParameters,
    FastLinksParameters,
    OverlapLocalSGDParameters,
    AdaptiveParameters,
    FederatedParameters,
    PlannedParameters,
)
STRATEGY_NAMES: tuple[str, ...] = tuple(
    get_args(each.model_fields["name"].annotation)[0] for each in STRATEGIES
)
SHORTHANDS = ("balanced_batches",)
"""Names that stand for `allreduce` with the option of the same name switched on."""

if TYPE_CHECKING:
    StrategyParameters = Parameters
else:
    # mypy cannot read a union built from a tuple at run time, hence the two definitions.
    StrategyParameters = Annotated[Union[STRATEGIES], Discriminator("name")]  # noqa: UP007


def list_churn_strategies() -> tuple[str, ...]:
    """List the names of the strategies whose workers may leave and join."""
    return tuple(
        name for name, each in zip(STRATEGY_NAMES, STRATEGIES, strict=True) if each.supports_churn
    )


def list_whole_model_strategies() -> tuple[str, ...]:
    """List the names of the strategies whose workers each have the whole model.

    Others need a plan for each model and continuum.
    """
    return tuple(
        name
        for name, each in zip(STRATEGY_NAMES, STRATEGIES, strict=True)
        if not each.divides_model
    )


def list_balancing_strategies() -> tuple[str, ...]:
    """List the names of the strategies that can balance batches by the workers' speeds."""
    return tuple(
        name
        for name, each in zip(STRATEGY_NAMES, STRATEGIES, strict=True)
        if issubclass(each, BalancedParameters)
    )


def parse_strategy(value: object) -> object:
    """Convert the value of `strategy:` to a mapping with a known name.

    Without a name, the strategy is `allreduce`. The bare name of a compression stands for
    `allreduce` with that compression.

    Raises:
        ValueError: no strategy has this name, or the strategy cannot balance batches.
    """
    if isinstance(value, str) and value in COMPRESSION_NAMES:
        return {"name": "allreduce", "compress": value}
    mapping = named(value)
    if not isinstance(mapping, dict):
        return value
    if mapping.get("name") in SHORTHANDS:
        mapping = {str(mapping["name"]): True, **mapping, "name": "allreduce"}
    name = mapping.get("name", "allreduce")
    if name not in STRATEGY_NAMES:
        # A mapping's name must be a strategy: a compression has a key of its own there.
        known = (
            *STRATEGY_NAMES,
            *SHORTHANDS,
            *(() if isinstance(value, dict) else COMPRESSION_NAMES),
        )
        place = ("name",) if isinstance(value, dict) else ()
        advice = suggest_name(name, known, place)
        if name in COMPRESSION_NAMES and isinstance(value, dict):
            compression = {**value}
            text = f"{name} is a compression: write `compress: {{name: {name}, ...}}`"
            advice = write_value((), {"compress": compression}, text)
        raise broken_rule("no such strategy", advice, place)
    if mapping.get("balanced_batches") and name not in list_balancing_strategies():
        rule = f"{name} cannot balance batches: each worker takes an equal share"
        text = f"remove balanced_batches, or use {', '.join(list_balancing_strategies())}"
        key = ("balanced_batches",)
        raise broken_rule(rule, remove_key(key, text), key)
    return {**mapping, "name": name}


def format_strategy_table() -> str:
    """Format the table of all strategies for `docs/strategies.md`."""
    rows = ["| strategy | description | reference |", "|---|---|---|"]
    for name, each in zip(STRATEGY_NAMES, STRATEGIES, strict=True):
        keys = [
            f"`{field.alias or key}`"
            for key, field in each.model_fields.items()
            if key not in ("name", "compress", "balanced_batches")
        ]
        title = f"`{name}` ({', '.join(keys)})" if keys else f"`{name}`"
        rows.append(f"| {title} | {each.summary} | {each.reference} |")
    return "\n".join(rows) + "\n"
