"""What every part of `workload.yaml` has in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema


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
    """A bare name as the mapping that it stands for."""
    return {"name": value} if isinstance(value, str) else value
