"""What `strategy:` in `workload.yaml` can say: every strategy's parameters, each with a default;
imports nothing heavy.

The class that does it is in the file of the strategy's name beside this one.
"""

from __future__ import annotations

import difflib
from typing import Annotated, ClassVar, Literal, Self, get_args

from pydantic import BeforeValidator, Discriminator, Field, model_validator
from pydantic_core import PydanticCustomError

from laggard.core.run_schema import SyncMode
from laggard.core.units import DurationS
from laggard.core.yaml_source import ERROR_SUBKEY
from laggard.workloads.balancing.parameters import BalancedBatches, TrueOrMapping, parse_switch
from laggard.workloads.compress.parameters import (
    COMPRESSION_NAMES,
    CompressionField,
    format_compression,
)
from laggard.workloads.specification.section import Section, StepCount, named
from laggard.workloads.strategies.base.graph import Graph


class Parameters(Section):
    """Base of every strategy's parameters.

    Attributes:
        uses_server: whether a server keeps the model.
        peer_to_peer: whether every rank speaks with every other over the transport of messages.
        background_exchange: whether a thread beside the training exchanges models, of which each
            step ends with a copy.
        supports_churn: whether workers may be lost, or leave and join, while the others train.
    """

    uses_server: ClassVar[bool] = False
    peer_to_peer: ClassVar[bool] = False
    background_exchange: ClassVar[bool] = False
    supports_churn: ClassVar[bool] = False

    @property
    def pace(self) -> SyncMode:
        """`lockstep`, where all ranks take the same steps and meet in some of them, or `own`, where
        each has its own.
        """
        return "lockstep"

    def describe(self) -> str:
        """Name and parameters, for people: `local_sgd, steps 8`."""
        values = self.model_dump(exclude={"compress"})
        name = str(values.pop("name"))
        parts = (
            _format_parameter(key, value)
            for key, value in values.items()
            if value is not False and value is not None
        )
        return ", ".join([name, *parts])


def _format_parameter(key: str, value: object) -> str:
    if not isinstance(value, dict):
        return f"{key} {value}"
    return f"{key} ({', '.join(f'{name} {each}' for name, each in value.items())})"


class BalancedParameters(Parameters):
    """Base of strategies whose ranks can share out a batch by their speeds: they take the same
    steps, or a server knows in which each is.
    """

    balanced_batches: Annotated[
        BalancedBatches | None, BeforeValidator(parse_switch), TrueOrMapping()
    ] = Field(
        default=None,
        description="shares of a batch by the ranks' measured speeds, and not even ones",
    )


class CompressibleParameters(Parameters):
    """Base of the parameters of strategies that can send less.

    Attributes:
        compressions: by name, what it can be told to compress with.
    """

    compressions: ClassVar[tuple[str, ...]] = ("topk", "fp16")
    compress: CompressionField = Field(
        default=None, description="how what is sent is made smaller; nothing is when absent"
    )

    @model_validator(mode="after")
    def _check_compression(self) -> Self:
        if self.compress is not None and self.compress.name not in self.compressions:
            rule = (
                f"with {self.model_dump()['name']} ranks send vectors, and powersgd compresses"
                " layers' matrices"
            )
            fix = f"use {' or '.join(self.compressions)}, or `name: allreduce`"
            raise PydanticCustomError(
                "cannot_compress",
                "{rule} — {fix}",
                {"rule": rule, "fix": fix, ERROR_SUBKEY: ("compress",)},
            )
        return self

    def describe(self) -> str:
        """Name and parameters, for people: `local_sgd, steps 8, after 0, compress topk (fraction
        0.01)`.
        """
        return super().describe() + (
            f", compress {format_compression(self.compress)}" if self.compress is not None else ""
        )


class AllReduceParameters(BalancedParameters, CompressibleParameters):
    """Every step averages all ranks' gradients: torch's DistributedDataParallel (Li et al., VLDB
    2020).
    """

    compressions: ClassVar[tuple[str, ...]] = COMPRESSION_NAMES
    name: Literal["allreduce"] = "allreduce"
    trace_buckets: bool = Field(
        default=False, description="also record every gradient bucket; costs a hook per bucket"
    )


class LocalSGDParameters(BalancedParameters, CompressibleParameters):
    """Ranks train by themselves and average their models now and then (post-local SGD: Lin et al.,
    ICLR 2020).
    """

    name: Literal["local_sgd"]
    steps: StepCount = Field(
        default=8, description="steps between two averages of all ranks' models"
    )
    after: int = Field(
        default=0,
        ge=0,
        description="until that many steps are done, the models are averaged in each",
    )


class HierarchicalParameters(BalancedParameters, CompressibleParameters):
    """Local SGD on two levels: averages within a tier often, across tiers seldom (Lin et al., ICLR
    2020).
    """

    name: Literal["hierarchical"]
    tier_steps: StepCount = Field(
        default=1, description="steps between two averages of the models of one tier's ranks"
    )
    wan_steps: StepCount = Field(
        default=8, description="steps between two averages of all ranks' models"
    )

    @model_validator(mode="after")
    def _check_wan_steps(self) -> Self:
        if self.wan_steps < self.tier_steps:
            rule = (
                f"tiers are averaged every {self.tier_steps} steps, and all of them no more often —"
                " raise wan_steps"
            )
            key = "wan_steps" if "wan_steps" in self.model_fields_set else "tier_steps"
            raise PydanticCustomError("far_is_seldom", rule, {ERROR_SUBKEY: (key,)})
        return self


class DiLoCoParameters(BalancedParameters, CompressibleParameters):
    """Ranks train by themselves; what they moved is averaged seldom, and an outer Nesterov step
    taken (Douillard et al. 2023).
    """

    name: Literal["diloco"]
    steps: StepCount = Field(default=50, description="inner steps between two outer ones")
    outer_lr: float = Field(default=0.7, gt=0, le=10, allow_inf_nan=False)
    outer_momentum: float = Field(default=0.9, ge=0, lt=1)


class ParameterServerParameters(BalancedParameters, CompressibleParameters):
    """A server keeps the model; workers push gradients and pull it, all in step (Li et al., OSDI
    2014).
    """

    uses_server: ClassVar[bool] = True
    supports_churn: ClassVar[bool] = True
    name: Literal["parameter_server"]


class AsynchronousParameters(CompressibleParameters):
    """A server applies every gradient when it comes, and nobody waits for anybody (Li et al., OSDI
    2014).
    """

    uses_server: ClassVar[bool] = True
    supports_churn: ClassVar[bool] = True
    name: Literal["asynchronous"]

    @property
    def pace(self) -> SyncMode:
        """Every rank's own."""
        return "own"


class BoundedStalenessParameters(BalancedParameters, CompressibleParameters):
    """Workers may be ahead of the slowest, by no more than so many steps (SSP: Ho et al., NIPS
    2013).
    """

    uses_server: ClassVar[bool] = True
    supports_churn: ClassVar[bool] = True
    name: Literal["bounded_staleness"]
    staleness: int = Field(
        default=4,
        ge=0,
        le=100_000_000,
        description="steps that a worker may be ahead of the slowest",
    )

    @property
    def pace(self) -> SyncMode:
        """Every rank's own, unless nobody may be ahead."""
        return "own" if self.staleness else "lockstep"


class BackupWorkersParameters(BalancedParameters, CompressibleParameters):
    """Every step takes the first gradients that come and drops those of the slowest workers (Chen
    et al. 2016).
    """

    uses_server: ClassVar[bool] = True
    supports_churn: ClassVar[bool] = True
    name: Literal["backup_workers"]
    backups: int = Field(
        default=1, ge=0, le=10_000, description="workers whose gradients a step does not wait for"
    )

    @property
    def pace(self) -> SyncMode:
        """Every rank's own, unless all are waited for."""
        return "own" if self.backups else "lockstep"


class RingAllReduceParameters(BalancedParameters):
    """As `allreduce`, carried by the transport that the strategies without collectives use: tells
    what is the transport's and what theirs.
    """

    peer_to_peer: ClassVar[bool] = True
    name: Literal["ring_allreduce"]


class GossipParameters(Parameters):
    """Every rank averages its model with its neighbours' in each step (D-PSGD: Lian et al., NIPS
    2017).
    """

    peer_to_peer: ClassVar[bool] = True
    supports_churn: ClassVar[bool] = True
    name: Literal["gossip"]
    graph: Graph = Field(default="ring", description="who is whose neighbour")

    @property
    def pace(self) -> SyncMode:
        """Every rank's own: it waits for its neighbours only."""
        return "own"


class ADPSGDParameters(Parameters):
    """Ranks average their models two by two beside the training, and wait for nobody (AD-PSGD: Lian
    et al., ICML 2018).
    """

    peer_to_peer: ClassVar[bool] = True
    background_exchange: ClassVar[bool] = True
    supports_churn: ClassVar[bool] = True
    name: Literal["ad_psgd"]
    graph: Graph = Field(
        default="complete", description="who may average with whom, of those of the other role"
    )
    timeout_s: DurationS = Field(
        default=10.0,
        gt=0,
        alias="timeout",
        description="after which a rank no longer waits for one partner, and tries another",
    )

    @property
    def pace(self) -> SyncMode:
        """Every rank's own."""
        return "own"


class PartialReduceParameters(Parameters):
    """Who has finished a step averages its model with others who have, in small groups (Prague: Luo
    et al., ASPLOS 2020).
    """

    peer_to_peer: ClassVar[bool] = True
    supports_churn: ClassVar[bool] = True
    name: Literal["partial_reduce"]
    group: int = Field(
        default=2, ge=2, le=15, description="workers that average their models together"
    )  # a message has room for 16 numbers
    rounds: int = Field(
        default=16,
        ge=1,
        le=100_000_000,
        description=(
            "steps after which workers whose models have not mixed are grouped, and waited for"
        ),
    )

    @property
    def pace(self) -> SyncMode:
        """Every rank's own: it waits for its group only."""
        return "own"


class HopParameters(Parameters):
    """As `gossip`, but nobody waits for late neighbours as long as they are within bounds (Hop: Luo
    et al., ASPLOS 2019).
    """

    peer_to_peer: ClassVar[bool] = True
    supports_churn: ClassVar[bool] = True
    name: Literal["hop"]
    graph: Graph = Field(default="ring", description="who is whose neighbour")
    staleness: int = Field(
        default=4, ge=0, le=10_000, description="steps that a neighbour's model may be old"
    )
    backups: int = Field(
        default=0, ge=0, le=10_000, description="neighbours that a step does not wait for"
    )
    skip: int = Field(
        default=4,
        ge=0,
        le=10_000,
        description="steps that who is behind leaves out at once, at most",
    )
    ahead: StepCount = Field(
        default=8, description="steps that a worker may be ahead of a neighbour"
    )

    @property
    def pace(self) -> SyncMode:
        """Every rank's own."""
        return "own"

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        chosen = self.model_fields_set
        if self.ahead <= self.staleness:
            rule = (
                f"models of {self.staleness} steps ago are never taken by who may be only"
                f" {self.ahead} steps ahead — make ahead {self.staleness + 1} or more"
            )
            raise PydanticCustomError(
                "ahead_of_staleness",
                rule,
                {ERROR_SUBKEY: ("ahead" if "ahead" in chosen else "staleness",)},
            )
        if (
            self.skip
            and "skip" in chosen
            and not self.staleness
            and (not self.backups or self.ahead == 1)
        ):
            rule = (
                "no worker is ever two steps behind its neighbours, so none is left out — raise"
                " staleness, or backups and ahead"
            )
            raise PydanticCustomError("nothing_to_skip", rule, {ERROR_SUBKEY: ("skip",)})
        if self.backups > 1 and self.graph == "ring":
            rule = (
                "in a ring everybody has two neighbours, and waits for one of them at least — make"
                " it 1 or less"
            )
            raise PydanticCustomError("too_many_backups", rule, {ERROR_SUBKEY: ("backups",)})
        return self


class FastLinksParameters(Parameters):
    """In each step workers are paired off and average their models, often over fast links and
    seldom over slow ones (NetMax: Zhou et al., ICDE 2021).
    """

    peer_to_peer: ClassVar[bool] = True
    supports_churn: ClassVar[bool] = True
    name: Literal["fast_links"]
    every: StepCount = Field(
        default=20, description="steps between two agreements on who meets whom how often"
    )
    mixing: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description=(
            "how fast models become one, at least, as a part of what it is without preferences"
        ),
    )
    explore: float = Field(
        default=0.1, gt=0, le=1, description="part of the steps without preferences"
    )

    @property
    def pace(self) -> SyncMode:
        """Every rank's own: it waits for its partners only."""
        return "own"


class OverlapLocalSGDParameters(Parameters):
    """Workers train by themselves, and average all models now and then without waiting for it
    (Overlap Local-SGD: Wang et al., ICASSP 2020).
    """

    peer_to_peer: ClassVar[bool] = True
    background_exchange: ClassVar[bool] = True
    supports_churn: ClassVar[bool] = True
    name: Literal["overlap_local_sgd"]
    steps: StepCount = Field(
        default=1,
        description="steps since the last average after which a worker is ready for the next",
    )
    ready_part: float = Field(
        default=0.5,
        ge=0,
        le=1,
        alias="ready",
        description="part of the workers that must be ready for it",
    )

    @property
    def pace(self) -> SyncMode:
        """Every rank's own."""
        return "own"


class AdaptiveParameters(Parameters):
    """Measures the continuum while it trains, and averages models in the manner and as often as
    suits it and the objective best.
    """

    peer_to_peer: ClassVar[bool] = True
    background_exchange: ClassVar[bool] = True
    supports_churn: ClassVar[bool] = True
    name: Literal["adaptive"]
    drift: float = Field(
        default=0.04,
        ge=0,
        le=1,
        description="part of a step's progress lost per further step without an average",
    )
    effort: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description=(
            "seconds of training that a second of averaging is worth, where nobody waits for it"
        ),
    )
    longest: StepCount = Field(
        default=32,
        description=(
            "steps between two averages of all workers, at most, unless models go two by two"
        ),
    )
    pairs: float = Field(
        default=3.0,
        gt=0,
        description=(
            "steps that an average of all takes from which on workers average their models two by"
            " two instead"
        ),
    )

    @property
    def pace(self) -> SyncMode:
        """Every rank's own."""
        return "own"


StrategyParameters = Annotated[
    AllReduceParameters
    | LocalSGDParameters
    | HierarchicalParameters
    | DiLoCoParameters
    | ParameterServerParameters
    | AsynchronousParameters
    | BoundedStalenessParameters
    | BackupWorkersParameters
    | RingAllReduceParameters
    | GossipParameters
    | ADPSGDParameters
    | PartialReduceParameters
    | HopParameters
    | FastLinksParameters
    | OverlapLocalSGDParameters
    | AdaptiveParameters,
    Discriminator("name"),
]
STRATEGY_NAMES = (
    "allreduce",
    "local_sgd",
    "hierarchical",
    "diloco",
    "parameter_server",
    "asynchronous",
    "bounded_staleness",
    "backup_workers",
    "ring_allreduce",
    "gossip",
    "ad_psgd",
    "partial_reduce",
    "hop",
    "fast_links",
    "overlap_local_sgd",
    "adaptive",
)


SHORTHANDS = ("balanced_batches",)
"""Names that stand for the all-reduce with what they say."""


def list_churn_strategies() -> tuple[str, ...]:
    """Names of the strategies whose workers may leave and join."""
    return tuple(name for name, each in _map_parameters_by_name().items() if each.supports_churn)


def list_balancing_strategies() -> tuple[str, ...]:
    """Names of the strategies whose workers can share out batches by their speeds."""
    return tuple(
        name
        for name, each in _map_parameters_by_name().items()
        if issubclass(each, BalancedParameters)
    )


def _map_parameters_by_name() -> dict[str, type[Parameters]]:
    union: tuple[type[Parameters], ...] = get_args(get_args(StrategyParameters)[0])
    return {get_args(each.model_fields["name"].annotation)[0]: each for each in union}


def parse_strategy(value: object) -> object:
    """What `strategy:` says as a mapping with a known name; without one it is the all-reduce, and
    so it is with a compression's bare name.

    Raises:
        PydanticCustomError: no strategy has this name, or this one has no batches to balance.
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
        known = (
            *STRATEGY_NAMES,
            *SHORTHANDS,
            *(() if isinstance(value, dict) else COMPRESSION_NAMES),
        )
        near = difflib.get_close_matches(str(name), known, n=1)
        fix = f"did you mean `{near[0]}`?" if near else f"use {', '.join(STRATEGY_NAMES)}"
        if name in COMPRESSION_NAMES:
            fix = f"{name} is a compression: write `compress: {{name: {name}, ...}}`"
        place = ("name",) if isinstance(value, dict) else ()
        raise PydanticCustomError(
            "no_such_strategy", "no such strategy — {fix}", {"fix": fix, ERROR_SUBKEY: place}
        )
    if mapping.get("balanced_batches") and name not in list_balancing_strategies():
        rule = "with {name} all workers' shares of a batch are even — remove it, or use {others}"
        details = {
            "name": name,
            "others": ", ".join(list_balancing_strategies()),
            ERROR_SUBKEY: ("balanced_batches",),
        }
        raise PydanticCustomError("not_balanced", rule, details)
    return {**mapping, "name": name}
