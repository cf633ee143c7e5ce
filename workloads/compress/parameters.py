"""What `compress:` of a strategy can say: every compression's parameters, each with a default;
imports nothing heavy.
"""

from __future__ import annotations

import difflib
from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field
from pydantic_core import PydanticCustomError

from laggard.core.yaml_source import ERROR_SUBKEY
from laggard.workloads.specification.section import NameOrMapping, Section, named

FIRST_POWERSGD_STEP = 2
"""DDP rearranges its buckets after the first step, and what PowerSGD remembers of them would not
fit any more."""


class Fp16Parameters(Section):
    """Every number in half precision: half the bytes."""

    name: Literal["fp16"] = "fp16"


class TopKParameters(Section):
    """The largest numbers and where they stand; the rest is kept and added to what is sent next
    (Stich et al., NeurIPS 2018).
    """

    name: Literal["topk"] = "topk"
    fraction: float = Field(default=0.01, gt=0, le=1, description="of the numbers, that are sent")


class PowerSGDParameters(Section):
    """Every layer's gradient as a product of two thin matrices, with error feedback (Vogels et al.,
    NeurIPS 2019); torch's own.
    """

    name: Literal["powersgd"] = "powersgd"
    rank: int = Field(default=2, ge=1, le=1024, description="columns of the thin matrices")
    after: int = Field(
        default=FIRST_POWERSGD_STEP,
        ge=FIRST_POWERSGD_STEP,
        le=100_000_000,
        description="steps before, in which gradients are averaged as they are",
    )


COMPRESSION_NAMES = ("topk", "powersgd", "fp16")


def parse_compression(value: object) -> object:
    """What `compress:` says as a mapping with a known name.

    Raises:
        PydanticCustomError: no compression has this name.
    """
    mapping = named(value)
    if not isinstance(mapping, dict):
        return value
    name = mapping.get("name")
    if name not in COMPRESSION_NAMES:
        near = difflib.get_close_matches(str(name), COMPRESSION_NAMES, n=1)
        fix = f"did you mean `{near[0]}`?" if near else f"use {', '.join(COMPRESSION_NAMES)}"
        place = ("name",) if isinstance(value, dict) and name is not None else ()
        raise PydanticCustomError(
            "unknown_compression", "no such compression — {fix}", {"fix": fix, ERROR_SUBKEY: place}
        )
    return mapping


Compression = Fp16Parameters | TopKParameters | PowerSGDParameters
CompressionField = Annotated[
    Annotated[Compression, Discriminator("name")] | None,
    BeforeValidator(parse_compression),
    NameOrMapping(*COMPRESSION_NAMES),
]


def format_compression(compression: Compression) -> str:
    """Name and parameters, for people: `topk (fraction 0.01)`."""
    values = compression.model_dump()
    name = str(values.pop("name"))
    return (
        f"{name} ({', '.join(f'{key} {value}' for key, value in values.items())})"
        if values
        else name
    )
