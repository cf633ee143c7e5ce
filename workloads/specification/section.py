"""Base class and field types of the sections of `workload.yaml`."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

StepCount = Annotated[int, Field(ge=1, le=100_000_000)]


class Section(BaseModel):
    """Base of every part of `workload.yaml`: unknown keys are refused, values never change."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class NameOrMapping:
    """Tells the JSON Schema that a bare name stands for a mapping with that name."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        named: JsonSchemaValue = {"type": "string", "examples": list(self.names)}
        return {"anyOf": [named, handler(schema)]}


def named(value: object) -> object:
    """Convert a bare name to the mapping that it stands for."""
    return {"name": value} if isinstance(value, str) else value
