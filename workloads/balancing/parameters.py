"""Parameters of `balanced_batches:` in a strategy's section; imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from laggard.workloads.specification.section import Section, StepCount


class BalancedBatches(Section):
    """Batch balancing: ranks take shares that fit their speeds (LB-BSP: Chen et al., SoCC 2020)."""

    RENAMED: ClassVar[Mapping[str, str]] = {"least_gain": "min_gain"}

    every: StepCount = Field(
        default=8,
        description="steps between two exchanges of step costs, each at the next synchronization",
    )
    window: int = Field(
        default=32,
        ge=6,
        le=10_000,
        description="number of last steps from which a rank estimates its speed",
    )
    min_gain: float = Field(
        default=0.02,
        ge=0,
        lt=1,
        description="fraction of the slowest step that new shares must save, beyond noise",
    )


class TrueOrMapping:
    """Annotation for the JSON Schema: `true` is a mapping of defaults, `false` is no mapping."""

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"anyOf": [{"type": "boolean"}, handler(schema)]}


def parse_switch(value: object) -> object:
    """Convert `true` to a mapping of defaults, and `false` to None."""
    return ({} if value else None) if isinstance(value, bool) else value
