"""Sections of `workload.yaml` for optimizer, placement, objective and end of training."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from laggard.core.corrections.broken_rules import broken_rule
from laggard.core.edits import remove_key, write_value
from laggard.core.units import DurationS
from laggard.workloads.specification.section import Section

OPTIMIZER_NAMES = ("sgd", "adam", "adamw")


def to_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


HostPattern = Annotated[str, Field(examples=["all", "edge.*"])]


class OptimizerSpec(Section):
    """Local update rule of each worker, as in torch.optim."""

    name: Literal["sgd", "adam", "adamw"] = Field(
        default="sgd", description="name of the optimizer in torch.optim"
    )
    lr: float = Field(default=0.05, gt=0, le=100, allow_inf_nan=False, description="learning rate")
    momentum: float | None = Field(
        default=None, ge=0, lt=1, description="momentum of sgd, 0.9 by default; not for adam, adamw"
    )
    weight_decay: float = Field(
        default=0.0,
        ge=0,
        le=10,
        allow_inf_nan=False,
        description="weight decay (L2 penalty; decoupled for adamw)",
    )

    @model_validator(mode="after")
    def _momentum_is_of_sgd(self) -> Self:
        if self.name != "sgd" and self.momentum is not None:
            advice = remove_key(("momentum",), "remove the key, or use sgd")
            raise broken_rule(f"{self.name} has no momentum", advice, ("momentum",))
        return self


class Placement(Section):
    """Hosts that train, in rank order.

    A ring's latency depends on that order.
    """

    workers: Annotated[tuple[HostPattern, ...], BeforeValidator(to_list)] = Field(
        default=("all",),
        min_length=1,
        description="patterns of the hosts that train, such as edge.*; ranks are in this order",
    )
    order: Literal["listed", "topology"] = Field(
        default="listed",
        description=(
            "order of the ranks: that of the patterns, or `topology`, in which the slowest transfer"
            " of a ring to the next host is as short as the links allow"
        ),
    )
    per_host: int = Field(
        default=1, ge=1, le=64, description="number of workers on each of these hosts"
    )
    server: HostPattern | None = Field(
        default=None,
        description=(
            "pattern of the host for the parameter server, if the strategy has one; the first"
            " matching host is used"
        ),
    )


class Objective(Section):
    """Goal of the strategy `adaptive`, and prices.

    Every run reports makespan, cost and fairness, whatever its strategy and goal.
    """

    name: Literal["makespan", "cost", "fairness"] = Field(
        default="makespan",
        description="quantity that `adaptive` optimizes: least makespan, least cost, most fairness",
    )
    prices: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(
        default_factory=dict,
        description=(
            "price of a host-hour for each layer, by the layer's name, and `gigabyte`: price of"
            " 10^9 bytes sent between layers"
        ),
    )


class Stop(Section):
    """End of training: the first of these rules that is met."""

    accuracy: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="accuracy from 0 to 1 that three evaluations in a row must reach",
    )
    steps: int | None = Field(default=None, ge=1, le=100_000_000, description="number of steps")
    time_s: DurationS | None = Field(
        default=None,
        alias="time",
        description="time since the first step, without evaluations, such as 5min",
    )

    @model_validator(mode="after")
    def _require_stopping_rule(self) -> Self:
        if self.accuracy is None and self.steps is None and self.time_s is None:
            text = "give at least one of accuracy, steps and time, for example `steps: 1000`"
            raise broken_rule("training would never end", write_value(("steps",), 1000, text))
        if self.time_s is not None and self.time_s <= 0:
            advice = write_value(("time",), "10min", "write for example 10min")
            raise broken_rule("a time of zero would end training at once", advice, ("time",))
        return self
