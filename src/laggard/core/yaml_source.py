"""YAML text as values that know their place in the file.

Scenario files may come from strangers. The following are refused before any model sees them: tags,
anchors and aliases ("billion laughs" bombs), merge keys, duplicate keys, numbers that are not
finite or overflow 64 bits, documents larger than `MAX_BYTES`, and documents nested deeper than
`MAX_DEPTH`. Plain values follow the core schema of YAML 1.2. E2Clab's own files are YAML 1.1 and
have a reader of their own (`layers_services/e2clab/yaml_files.py`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING

from laggard.core.edits import Correction, KeyPath, YamlScalar, YamlValue
from laggard.core.errors import Problem, ScenarioError, escape_unprintable

if TYPE_CHECKING:
    from pydantic import JsonValue
    from ruamel.yaml.error import StringMark
    from ruamel.yaml.events import Event, ScalarEvent

__all__ = [
    "MAX_BYTES",
    "MAX_DEPTH",
    "KeyPath",
    "YamlScalar",
    "YamlSource",
    "YamlValue",
    "decode_yaml_text",
    "format_key_value",
    "parse_yaml",
    "to_yaml",
]

MAX_BYTES = 1 << 18
MAX_DEPTH = 32


@dataclass(frozen=True)
class YamlSource:
    """One parsed YAML file.

    Attributes:
        path: path that messages show.
        value: content as plain Python values.
        positions: line and column of the value at each key path, from 1; those of the key if the
            value is missing.
        origins: source of each overridden value, such as `--set ...`, by key path.
        readings: text of each unquoted value that is read as something else than text, by key
            path; only for YAML 1.1, whose readings surprise (`10:00:00` is the number 36000).
    """

    path: str
    value: YamlValue
    positions: Mapping[KeyPath, tuple[int, int]]
    origins: Mapping[KeyPath, str] = field(default_factory=dict)
    readings: Mapping[KeyPath, str] = field(default_factory=dict)

    def locate_problem(
        self, key: KeyPath, rule: str, fix: str | Correction = "", value: str | None = None
    ) -> Problem:
        """Create a `Problem` located at `key`, or at its nearest ancestor in the file."""
        shown = format_key_value(key, self.at(key)) if value is None else value
        advice = fix if isinstance(fix, Correction) else Correction(fix)
        written = tuple(key)
        while written and written not in self.positions and written not in self.origins:
            written = written[:-1]
        if written in self.origins:
            return Problem(self.origins[written], 0, 0, shown, rule, advice.text, advice.edits)
        line, column = self.positions.get(written, (1, 1))
        return Problem(self.path, line, column, shown, rule, advice.text, advice.edits)

    def at(self, key: KeyPath) -> YamlValue:
        """Return the value at `key`, or None if the file does not contain it."""
        value = self.value
        for part in key:
            if isinstance(value, dict):
                value = value.get(part)
            elif isinstance(value, list) and isinstance(part, int) and 0 <= part < len(value):
                value = value[part]
            else:
                return None
        return value


def parse_yaml(data: bytes | str, path: str) -> YamlSource:
    """Parse one YAML document.

    Args:
        data: content of the file.
        path: path that messages show.

    Raises:
        ScenarioError: the content is not UTF-8, not YAML, or YAML that a scenario file may not
            use.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    reader = _Reader(path)
    text = decode_yaml_text(data, path)
    try:
        reader.read(YAML(typ="safe", pure=True).parse(text))
    except YAMLError as error:
        raise ScenarioError((make_syntax_problem(error, path),)) from error
    except (ValueError, OverflowError, IndexError) as error:
        rule = f"not YAML: {error}"
        raise ScenarioError(
            (Problem(path, 1, 1, "", rule, "look for a wrong escape sequence in quoted text"),)
        ) from error
    return YamlSource(path, reader.value, reader.positions)


def decode_yaml_text(data: bytes | str, path: str, most: int = MAX_BYTES) -> str:
    """Return the content of a scenario file as text of at most `most` characters.

    Raises:
        ScenarioError: the content is not UTF-8, or too long.
    """
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
            "a scenario file must be UTF-8 text",
            "save it as UTF-8",
        )
        raise ScenarioError((problem,)) from error
    if len(text) > most:
        rule = f"a scenario file must have at most {most} characters"
        raise ScenarioError(
            (
                Problem(
                    path, 1, 1, f"{len(text)} characters", rule, "check that it is the right one"
                ),
            )
        )
    return text.removeprefix("\ufeff")


def make_syntax_problem(error: Exception, path: str) -> Problem:
    """Convert an error of ruamel.yaml or PyYAML to a problem at its place in the file."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    reason = (
        getattr(error, "problem", None)
        or getattr(error, "context", None)
        or str(error).partition("\n")[0]
    )
    return Problem(path, line, column, "", f"not YAML: {reason}", "see yaml.org for the syntax")


class _Reader:
    """Builder of the value from the parser's events; it refuses forbidden content at once."""

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
                        event,
                        "---",
                        "a scenario file must be one YAML document",
                        "keep one of them",
                    )
                self.value = self._read_value(next(events), events, ())
            elif not isinstance(event, StreamStartEvent | StreamEndEvent):
                continue

    def _read_value(self, event: Event, events: Iterator[Event], key: KeyPath) -> YamlValue:
        from ruamel.yaml.events import MappingStartEvent, ScalarEvent, SequenceStartEvent

        self._check_node(event)
        if len(key) > MAX_DEPTH:
            raise self._make_error(
                event, "this value", f"nested deeper than {MAX_DEPTH} levels", "flatten the file"
            )
        self.positions.setdefault(key, _get_position(event))
        if isinstance(event, MappingStartEvent):
            return self._read_mapping(events, key)
        if isinstance(event, SequenceStartEvent):
            return self._read_sequence(events, key)
        assert isinstance(event, ScalarEvent)
        return self._read_scalar(event)

    def _read_mapping(self, events: Iterator[Event], key: KeyPath) -> dict[YamlScalar, YamlValue]:
        from ruamel.yaml.events import MappingEndEvent

        converted: dict[YamlScalar, YamlValue] = {}
        for event in events:
            if isinstance(event, MappingEndEvent):
                break
            name = self._read_key(event, converted)
            # The path with "#key" has the position of the key, the path without it the value's.
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

    def _read_key(self, event: Event, taken: Mapping[YamlScalar, YamlValue]) -> str:
        from ruamel.yaml.events import ScalarEvent

        self._check_node(event)
        if not isinstance(event, ScalarEvent):
            raise self._make_error(event, "a key", "a key must be a plain word", "write it as text")
        name = self._read_text(event)
        if name in taken:
            raise self._make_error(
                event, name, "this key already exists in the mapping", "keep one of them"
            )
        if name == "<<" and event.style is None:
            raise self._make_error(
                event, name, "merge keys are not allowed here", "write the keys of both mappings"
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
                "half of a surrogate pair is not a character",
                "write the character itself",
            )
        return text

    def _check_node(self, event: Event) -> None:
        from ruamel.yaml.events import AliasEvent, NodeEvent

        if isinstance(event, NodeEvent) and event.anchor is not None:
            shown = f"{'*' if isinstance(event, AliasEvent) else '&'}{event.anchor}"
            raise self._make_error(
                event, shown, "anchors and aliases are not allowed here", "repeat the value"
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
                    truncate_text(escape_unprintable(value)),
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
    """Convert an unquoted value according to YAML 1.2's core schema."""
    if text in _PLAIN_WORDS:
        return _PLAIN_WORDS[text]
    if _INTEGER.fullmatch(text):
        if (
            len(text) > 64
            or abs(number := int(text, 0 if text[:2] in ("0o", "0x") else 10)) >= 1 << 63
        ):
            raise ValueError("a whole number must have at most 63 bits")
        return number
    if _NOT_FINITE.fullmatch(text) or (_DECIMAL.fullmatch(text) and not math.isfinite(float(text))):
        raise ValueError("a number must be finite")
    return float(text) if _DECIMAL.fullmatch(text) else text


def format_key_value(key: KeyPath, value: YamlValue) -> str:
    """Format a key path with its value, for a message."""
    name = ".".join(str(part) for part in key)
    if value is None:
        return name
    shown = truncate_text(json.dumps(to_json(value), ensure_ascii=False))
    return f"{name}: {shown}" if name else shown


def to_json(value: YamlValue) -> object:
    """Return a value in types that JSON has; dates, and keys that are no text, become text."""
    if isinstance(value, dict):
        return {str(key): to_json(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [to_json(inner) for inner in value]
    return str(value) if isinstance(value, date) else value


def to_yaml(value: JsonValue) -> str:
    """Return a value as JSON that YAML 1.1 reads too, which needs a point in 1e-05."""
    if isinstance(value, list):
        return f"[{', '.join(map(to_yaml, value))}]"
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)}: {to_yaml(each)}" for key, each in value.items())
        return f"{{{', '.join(pairs)}}}"
    text = json.dumps(value)
    if isinstance(value, float) and "." not in text:
        return text.replace("e", ".0e")
    return text


def truncate_text(text: str) -> str:
    """Return a text of at most 60 characters for a message."""
    return text if len(text) <= 60 else text[:57] + "..."
