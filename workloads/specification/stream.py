"""Sections `stream` and `rehearsal` of `workload.yaml`: data that arrives task by task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from laggard.core.corrections.broken_rules import broken_rule
from laggard.core.edits import remove_key
from laggard.core.files.csv_name import CsvName
from laggard.core.units import DurationS
from laggard.workloads.specification.section import Section

_Class = Annotated[int, Field(ge=0, le=1_000_000)]


Owner = Annotated[int, Field(ge=-1, lt=1_000_000)]


class Births(Section):
    """Workers that have the training samples."""

    concentration: float | None = Field(
        default=None,
        gt=0,
        le=1e6,
        description=(
            "parameter of the Dirichlet distribution of each class over the workers; small values"
            " give a class to few workers"
        ),
    )
    layers: Mapping[str, tuple[_Class, ...]] = Field(
        default={}, description="classes whose samples are born at the workers of a layer only"
    )
    clients: CsvName | None = Field(
        default=None,
        description=(
            "CSV in the scenario's folder with the columns client and sample: a worker's host or"
            " number, and the number of a training sample"
        ),
    )
    owners: tuple[Owner, ...] = Field(
        default=(),
        max_length=10_000_000,
        description="number of the worker that has each training sample, in order; -1 for none",
    )

    @model_validator(mode="after")
    def _has_one_form(self) -> Births:
        given = [name for name in type(self).model_fields if getattr(self, name)]
        if len(given) > 1:
            raise broken_rule(
                f"samples have their workers by one of {', '.join(given)}",
                remove_key((given[-1],), f"remove `{given[-1]}`, or the other one"),
            )
        if not given:
            forms = ", ".join(f"`{name}`" for name in type(self).model_fields)
            raise broken_rule("nothing says who has which samples", f"give one of {forms}")
        return self


class Arrival(Section):
    """Pace at which samples arrive at each worker of a layer."""

    rate: float = Field(default=0.0, ge=0, le=1e9, description="samples per second, evenly")
    burst: int = Field(
        default=0, ge=0, le=100_000_000, description="samples that arrive at once, `every` so often"
    )
    every_s: DurationS | None = Field(
        default=None,
        alias="every",
        gt=0,
        description="time between two bursts; the first one comes at the beginning",
    )

    @model_validator(mode="after")
    def _arrives(self) -> Arrival:
        if bool(self.burst) != (self.every_s is not None):
            missing = "every" if self.burst else "burst"
            raise broken_rule("bursts have a size and a period", f"give `{missing}` too")
        if not self.rate and not self.burst:
            raise broken_rule("no sample ever arrives", "give a `rate`, or `burst` and `every`")
        return self


class StreamSpec(Section):
    """Order in which the training samples arrive."""

    kind: Literal["class_incremental", "domain_incremental", "task_free"] = Field(
        default="class_incremental",
        description=(
            "class_incremental (each task has classes of its own), domain_incremental (each task"
            " has other samples of all classes), or task_free (classes come and go gradually)"
        ),
    )
    tasks: int = Field(default=5, ge=1, le=10_000, description="number of tasks")
    classes: tuple[tuple[_Class, ...], ...] = Field(
        default=(), description="classes of each task; default: all, divided evenly"
    )
    order: int | None = Field(
        default=None,
        ge=0,
        description="seed of the order of the classes; default: ascending order",
    )
    passes: int = Field(
        default=1, ge=1, le=10_000, description="passes over the samples of each task"
    )
    births: Births | None = Field(
        default=None, description="workers at which samples are born; default: any sample anywhere"
    )
    arrivals: Mapping[str, Arrival] = Field(
        default={},
        description="pace at which samples arrive, by layer; default: all are there from the start",
    )


class RehearsalSpec(Section):
    """Buffer of old samples at every worker."""

    size: int = Field(ge=1, le=100_000_000, description="most samples in a worker's buffer")
    sample: int = Field(
        ge=1, le=1_000_000, description="old samples that each worker adds to those of a step"
    )
    keep: Literal["reservoir", "class_balanced"] = Field(
        default="class_balanced",
        description=(
            "samples that stay: reservoir (all equally likely) or class_balanced (the same number"
            " of each class)"
        ),
    )
    exchange: Literal["local", "global"] = Field(
        default="local",
        description=(
            "buffers from which old samples are drawn: local (a worker's own) or global (those of"
            " all workers alike; samples are sent over the links, beside the training)"
        ),
    )


def describe_stream(stream: StreamSpec | None, rehearsal: RehearsalSpec | None) -> str | None:
    """Describe how samples arrive and which old ones are rehearsed; None without a stream."""
    if stream is None:
        return None
    arrival = f"samples arrive in {len(stream.classes) or stream.tasks} tasks ({stream.kind})"
    if rehearsal is None:
        return arrival
    return (
        f"{arrival}; with those of each step, every worker trains on {rehearsal.sample} old ones,"
        f" of up to {rehearsal.size} that it keeps"
    )
