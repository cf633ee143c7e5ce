"""Parameters of `compress:` in a strategy's section, by compression; imports nothing heavy."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field

from laggard.workloads.specification.section import NameOrMapping, Section, require_known_name

FIRST_POWERSGD_STEP = 2
"""First step that PowerSGD may compress. DDP rearranges its buckets after the first step, and
PowerSGD's state would not fit the new ones."""


class Fp16Parameters(Section):
    """Half precision for every number, which halves the bytes."""

    name: Literal["fp16"] = "fp16"


class TopKParameters(Section):
    """Largest numbers and their positions; the rest is added to the next vector.

    Stich et al., NeurIPS 2018.
    """

    name: Literal["topk"] = "topk"
    fraction: float = Field(
        default=0.01, gt=0, le=1, description="fraction of the numbers that is sent"
    )


class PowerSGDParameters(Section):
    """Low-rank product for the gradient of every layer, with error feedback; torch's own.

    Vogels et al., NeurIPS 2019. The factors are two thin matrices.
    """

    name: Literal["powersgd"] = "powersgd"
    rank: int = Field(default=2, ge=1, le=1024, description="columns of the thin matrices")
    after: int = Field(
        default=FIRST_POWERSGD_STEP,
        ge=FIRST_POWERSGD_STEP,
        le=100_000_000,
        description="number of first steps, in which gradients are averaged uncompressed",
    )


COMPRESSION_NAMES = ("topk", "powersgd", "fp16")


Compression = Fp16Parameters | TopKParameters | PowerSGDParameters
CompressionField = Annotated[
    Annotated[Compression, Discriminator("name")] | None,
    BeforeValidator(
        partial(require_known_name, names=COMPRESSION_NAMES, rule="no such compression")
    ),
    NameOrMapping(*COMPRESSION_NAMES),
]


def format_compression(compression: Compression) -> str:
    """Format name and parameters for people: `topk (fraction 0.01)`."""
    values = compression.model_dump()
    name = str(values.pop("name"))
    return (
        f"{name} ({', '.join(f'{key} {value}' for key, value in values.items())})"
        if values
        else name
    )
