"""Sections of `workload.yaml` for the optimizer, the placement, the objective and the end of
training.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from laggard.core.units import DurationS
from laggard.workloads.specification.section import Section

OPTIMIZER_NAMES = ("sgd", "adam", "adamw")


def _to_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


class OptimizerSpec(Section):
    """The local update rule, as in torch.optim."""

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = Field(default=0.05, gt=0, le=100, allow_inf_nan=False)
    momentum: float | None = Field(
        default=None, ge=0, lt=1, description="for sgd only, and there 0.9 when absent"
    )
    weight_decay: float = Field(default=0.0, ge=0, le=10, allow_inf_nan=False)

    @model_validator(mode="after")
    def _momentum_is_of_sgd(self) -> Self:
        if self.name != "sgd" and self.momentum is not None:
            raise ValueError(f"{self.name} has no momentum — remove it, or use sgd")
        return self


class Placement(Section):
    """Which hosts train, in rank order; a ring's latency depends on that order."""

    workers: Annotated[tuple[str, ...], BeforeValidator(_to_list)] = Field(
        default=("all",), min_length=1
    )
    per_host: int = Field(default=1, ge=1, le=64, description="workers on each of these hosts")
    server: str | None = Field(
        default=None, description="the host of a strategy that has a server: the first match"
    )


class Objective(Section):
    """What `adaptive` makes small, or fair; every run reports all three. And what a run costs."""

    name: Literal["makespan", "cost", "fairness"] = "makespan"
    prices: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(
        default_factory=dict,
        description="per host-hour by layer, and `gigabyte` per GB sent between layers",
    )


class Stop(Section):
    """When training ends: whichever of these comes first."""

    accuracy: float | None = Field(
        default=None, gt=0, le=1, description="reached in three evaluations in a row"
    )
    steps: int | None = Field(default=None, ge=1, le=100_000_000)
    time_s: DurationS | None = Field(
        default=None, alias="time", description="since the first step, without evaluations"
    )

    @model_validator(mode="after")
    def _require_stopping_rule(self) -> Self:
        if self.accuracy is None and self.steps is None and self.time_s is None:
            raise ValueError(
                "nothing ends the training — give at least one of accuracy, steps and time"
            )
        if self.time_s is not None and self.time_s <= 0:
            raise ValueError(
                "a time of zero trains nothing — give a positive duration such as 10min"
            )
        return self
