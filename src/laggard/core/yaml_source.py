"""YAML text to values that remember where they were written, and model errors that say so.

Scenario files come from strangers. Tags, anchors and aliases (bombs), merge keys, duplicate keys,
numbers that are not finite or overflow 64 bits, documents over `MAX_BYTES` or nested deeper than
`MAX_DEPTH` are refused before any model sees them. Plain values follow the core schema of YAML 1.2.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, get_args

from laggard.core.errors import Problem, ScenarioError, escape_unprintable

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails
    from ruamel.yaml.error import StringMark, YAMLError
    from ruamel.yaml.events import Event, ScalarEvent

ERROR_SUBKEY = "at"
"""In the context of a model's `PydanticCustomError`: the keys below the model that it is about."""

MAX_BYTES = 1 << 18
MAX_DEPTH = 32

KeyPath = tuple[str | int, ...]
YamlValue = None | bool | int | float | str | list["YamlValue"] | dict[str, "YamlValue"]
Model = TypeVar("Model", bound="BaseModel")


@dataclass(frozen=True)
class YamlSource:
    """One parsed YAML file.

    Attributes:
        path: shown in messages.
        value: plain Python values.
        positions: line and column, from 1, of every key path (of the value; of the key where the
            value is missing).
        origins: where a value came from instead of the file (`--set ...`), for key paths that were
            overridden.
    """

    path: str
    value: YamlValue
    positions: Mapping[KeyPath, tuple[int, int]]
    origins: Mapping[KeyPath, str] = field(default_factory=dict)

    def locate_problem(
        self, key: KeyPath, rule: str, fix: str = "", value: str | None = None
    ) -> Problem:
        """A `Problem` located at `key`, or at its nearest written ancestor."""
        shown = _format_key_value(key, self.at(key)) if value is None else value
        written = tuple(key)
        while written and written not in self.positions and written not in self.origins:
            written = written[:-1]
        if written in self.origins:
            return Problem(self.origins[written], 0, 0, shown, rule, fix)
        line, column = self.positions.get(written, (1, 1))
        return Problem(self.path, line, column, shown, rule, fix)

    def at(self, key: KeyPath) -> YamlValue:
        """The value at `key`, or None where nothing is written."""
        value = self.value
        for part in key:
            if isinstance(value, dict) and part in value:
                value = value[str(part)]
            elif isinstance(value, list) and isinstance(part, int) and 0 <= part < len(value):
                value = value[part]
            else:
                return None
        return value


def parse_yaml(data: bytes | str, path: str) -> YamlSource:
    """Parse one YAML document.

    Args:
        data: the file's content.
        path: shown in messages.

    Raises:
        ScenarioError: not UTF-8, not YAML, or YAML that a scenario file may not use.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    reader = _Reader(path)
    text = _decode_text(data, path)
    try:
        reader.read(YAML(typ="safe", pure=True).parse(text))
    except YAMLError as error:
        raise ScenarioError((_make_syntax_problem(error, path),)) from error
    except (ValueError, OverflowError, IndexError) as error:
        rule = f"not YAML: {error}"
        raise ScenarioError((Problem(path, 1, 1, "", rule, "look for a wrong escape"),)) from error
    return YamlSource(path, reader.value, reader.positions)


def validate_model(source: YamlSource, model: type[Model], value: YamlValue = None) -> Model:
    """The source's value as an instance of `model`.

    Raises:
        ScenarioError: with one located problem per error of the model.
    """
    from pydantic import ValidationError

    try:
        return model.model_validate(source.value if value is None else value)
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise ScenarioError(
            tuple(_make_problem(source, model, each) for each in details)
        ) from error


def _decode_text(data: bytes | str, path: str) -> str:
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
    except UnicodeDecodeError as error:
        before = data[: error.start] if isinstance(data, bytes) else b""
        line, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        problem = Problem(
            path,
            line,
            column,
            f"byte {error.start}",
            "a scenario file is UTF-8 text",
            "save it as UTF-8",
        )
        raise ScenarioError((problem,)) from error
    if len(text) > MAX_BYTES:
        rule = f"a scenario file is at most {MAX_BYTES} characters"
        raise ScenarioError(
            (Problem(path, 1, 1, f"{len(text)} characters", rule, "is this the right file?"),)
        )
    return text.removeprefix("\ufeff")


def _make_syntax_problem(error: YAMLError, path: str) -> Problem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    reason = (
        getattr(error, "locate_problem", None)
        or getattr(error, "context", None)
        or str(error).partition("\n")[0]
    )
    return Problem(path, line, column, "", f"not YAML: {reason}", "see yaml.org for the syntax")


class _Reader:
    """Builds the value from the parser's events, refusing what a scenario file may not use as soon
    as it comes by.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.value: YamlValue = None
        self.positions: dict[KeyPath, tuple[int, int]] = {}

    def read(self, events: Iterator[Event]) -> None:
        from ruamel.yaml.events import DocumentStartEvent, StreamEndEvent, StreamStartEvent

        documents = 0
        for event in events:
            if isinstance(event, DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self._make_error(
                        event, "---", "a scenario file is one YAML document", "keep one of them"
                    )
                self.value = self._read_value(next(events), events, ())
            elif not isinstance(event, StreamStartEvent | StreamEndEvent):
                continue

    def _read_value(self, event: Event, events: Iterator[Event], key: KeyPath) -> YamlValue:
        from ruamel.yaml.events import MappingStartEvent, ScalarEvent, SequenceStartEvent

        self._check_node(event)
        if len(key) > MAX_DEPTH:
            raise self._make_error(
                event, "", f"nested deeper than {MAX_DEPTH} levels", "flatten the file"
            )
        self.positions.setdefault(key, _get_position(event))
        if isinstance(event, MappingStartEvent):
            return self._read_mapping(events, key)
        if isinstance(event, SequenceStartEvent):
            return self._read_sequence(events, key)
        assert isinstance(event, ScalarEvent)
        return self._read_scalar(event)

    def _read_mapping(self, events: Iterator[Event], key: KeyPath) -> dict[str, YamlValue]:
        from ruamel.yaml.events import MappingEndEvent

        converted: dict[str, YamlValue] = {}
        for event in events:
            if isinstance(event, MappingEndEvent):
                break
            name = self._read_key(event, converted)
            self.positions[*key, name, "#key"] = _get_position(event)
            converted[name] = self._read_value(next(events), events, (*key, name))
        return converted

    def _read_sequence(self, events: Iterator[Event], key: KeyPath) -> list[YamlValue]:
        from ruamel.yaml.events import SequenceEndEvent

        converted: list[YamlValue] = []
        for event in events:
            if isinstance(event, SequenceEndEvent):
                break
            converted.append(self._read_value(event, events, (*key, len(converted))))
        return converted

    def _read_key(self, event: Event, taken: Mapping[str, YamlValue]) -> str:
        from ruamel.yaml.events import ScalarEvent

        self._check_node(event)
        if not isinstance(event, ScalarEvent):
            raise self._make_error(event, "", "a key is a plain word", "write it as text")
        name = self._read_text(event)
        if name in taken:
            raise self._make_error(event, name, "this key is already there", "keep one of them")
        if name == "<<" and event.style is None:
            raise self._make_error(
                event, name, "merge keys are not allowed here", "write the keys out"
            )
        return name

    def _read_scalar(self, event: ScalarEvent) -> YamlValue:
        text = self._read_text(event)
        if event.style is not None:
            return text
        try:
            return _parse_plain_scalar(text)
        except ValueError as error:
            raise self._make_error(event, text, str(error), "quote it if it is text") from error

    def _read_text(self, event: ScalarEvent) -> str:
        text = str(event.value)
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise self._make_error(
                event,
                text,
                "half of a surrogate pair is no character",
                "write the character itself",
            )
        return text

    def _check_node(self, event: Event) -> None:
        from ruamel.yaml.events import AliasEvent, NodeEvent

        if isinstance(event, NodeEvent) and event.anchor is not None:
            shown = f"{'*' if isinstance(event, AliasEvent) else '&'}{event.anchor}"
            raise self._make_error(
                event, shown, "anchors and aliases are not allowed here", "write the value out"
            )
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise self._make_error(
                event, str(tag), "tags are not allowed here", "write the plain value"
            )

    def _make_error(self, event: Event, value: str, rule: str, fix: str) -> ScenarioError:
        return ScenarioError(
            (
                Problem(
                    self.path,
                    *_get_position(event),
                    _truncate_text(escape_unprintable(value)),
                    rule,
                    fix,
                ),
            )
        )


def _get_position(event: Event) -> tuple[int, int]:
    mark: StringMark = event.start_mark
    return mark.line + 1, mark.column + 1


_PLAIN_WORDS: Mapping[str, YamlValue] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_INTEGER = re.compile(r"[-+]?\d+|0o[0-7]+|0x[0-9a-fA-F]+", re.ASCII)
_DECIMAL = re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?", re.ASCII)
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


def _parse_plain_scalar(text: str) -> YamlValue:
    """An unquoted value by YAML 1.2's core schema."""
    if text in _PLAIN_WORDS:
        return _PLAIN_WORDS[text]
    if _INTEGER.fullmatch(text):
        if (
            len(text) > 64
            or abs(number := int(text, 0 if text[:2] in ("0o", "0x") else 10)) >= 1 << 63
        ):
            raise ValueError("a whole number has at most 63 bits")
        return number
    if _NOT_FINITE.fullmatch(text) or (_DECIMAL.fullmatch(text) and not math.isfinite(float(text))):
        raise ValueError("a number is finite")
    return float(text) if _DECIMAL.fullmatch(text) else text


def _make_problem(source: YamlSource, model: type[BaseModel], details: ErrorDetails) -> Problem:
    below = details.get("ctx", {}).get(ERROR_SUBKEY, ())
    key = (*_find_written_key(source, details["loc"], whole=not below), *below)
    kind = details["type"]
    if kind == "extra_forbidden":
        problem = source.locate_problem(
            key, "unknown key", _suggest_key(model, details["loc"]), value=str(key[-1])
        )
        place = source.positions.get((*key, "#key"))
        if place is None or problem.line == 0:
            return problem
        return Problem(problem.path, *place, problem.value, problem.rule, problem.fix)
    if kind == "missing":
        return source.locate_problem(
            key[:-1],
            f"`{details['loc'][-1]}` is missing",
            "add it",
            value=_format_key_value(key[:-1], None),
        )
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return source.locate_problem(
            key, "keys with values are expected here", "write `key: value` lines, or {key: value}"
        )
    if kind in ("tuple_type", "list_type"):
        return source.locate_problem(
            key, "a list is expected here", "write `- ` lines, or [one, two]"
        )
    message = details["msg"].removeprefix("Value error, ")
    rule, _, fix = message.partition(" — ")
    return source.locate_problem(key, re.sub(r"^(Input|Value) should", "this should", rule), fix)


def _find_written_key(source: YamlSource, location: Sequence[str | int], *, whole: bool) -> KeyPath:
    """A pydantic location without the union tags it puts between keys; `whole` keeps its end
    whatever that is.
    """
    key: KeyPath = ()
    for i, part in enumerate(location):
        parent = source.at(key)
        known = (isinstance(parent, dict) and part in parent) or (
            isinstance(parent, list) and isinstance(part, int)
        )
        if known or (whole and i == len(location) - 1):
            key = (*key, part)
    return key


def _suggest_key(model: type[BaseModel], location: Sequence[str | int]) -> str:
    """The fix for an unknown key: the nearest known one, or all that its place allows."""
    names = sorted(
        {name for each in _find_models_at(model, location[:-1]) for name in _list_field_names(each)}
    )
    near = difflib.get_close_matches(str(location[-1]), names, n=1)
    if (
        near and near[0] == location[-1]
    ):  # of another kind of rule than this one's other keys say it is
        return "it does not go with the other keys here; remove it, or them"
    if near:
        return f"did you mean `{near[0]}`?"
    return f"the keys are {', '.join(names)}" if names else "remove it"


def _find_models_at(model: type[BaseModel], location: Sequence[str | int]) -> list[type[BaseModel]]:
    models = [model]
    for part in location:
        fields = [
            field
            for each in models
            for name, field in each.model_fields.items()
            if part in (name, field.alias)
        ]
        if fields:
            models = [inner for field in fields for inner in _find_inner_models(field.annotation)]
        else:
            models = [
                each for each in models if part == each.__name__ or part in _list_name_values(each)
            ] or models
    return models


def _list_name_values(model: type[BaseModel]) -> tuple[object, ...]:
    """The values of `name` that a model of a union is chosen by."""
    name = model.model_fields.get("name")
    return get_args(name.annotation) if name is not None else ()


def _find_inner_models(annotation: object) -> list[type[BaseModel]]:
    from pydantic import BaseModel

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _find_inner_models(argument)]


def _list_field_names(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _format_key_value(key: KeyPath, value: YamlValue) -> str:
    name = ".".join(str(part) for part in key)
    if value is None:
        return name
    shown = _truncate_text(json.dumps(value, ensure_ascii=False, default=str))
    return f"{name}: {shown}" if name else shown


def _truncate_text(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
