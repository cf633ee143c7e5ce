"""Base class and field types of the sections of `workload.yaml`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from laggard.core.corrections.broken_rules import broken_rule
from laggard.core.corrections.names import suggest_name
from laggard.core.edits import rename_key

StepCount = Annotated[int, Field(ge=1, le=100_000_000)]


class Section(BaseModel):
    """Base of every part of `workload.yaml`: unknown keys are refused, and values never change."""

    RENAMED: ClassVar[Mapping[str, str]] = {}
    """Present name of each key that an earlier version called otherwise.

    The old key is refused with a message that gives the present name.
    """

    # Files use a field's alias (`time`), and Python code its name with the unit (`time_s`).
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_renamed_keys(cls, value: object) -> object:
        renamed = cls.RENAMED.keys() & value.keys() if isinstance(value, dict) else ()
        for key in sorted(renamed):
            name = cls.RENAMED[key]
            written = value[key] if isinstance(value, dict) else None
            advice = rename_key((key,), name, written, f"write {name}")
            raise broken_rule(f"`{key}` is now called `{name}`", advice, (key,))
        return value


class NameOrMapping:
    """Marker for the JSON Schema: a bare name stands for a mapping with that name.

    Args:
        names: names that editors suggest.
    """

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


def require_known_name(value: object, names: Sequence[str], rule: str) -> object:
    """Convert a name or a mapping to a mapping with a known name; return other values as they are.

    Args:
        value: value of a key.
        names: known names.
        rule: rule that another name breaks.

    Raises:
        ValueError: the name is not known.
    """
    mapping = named(value)
    if not isinstance(mapping, dict):
        return value
    name = mapping.get("name")
    if name not in names:
        place = ("name",) if isinstance(value, dict) else ()
        advice = suggest_name(name, names, place)
        raise broken_rule(rule, advice, place if name is not None else ())
    return mapping
