"""YAML text to values that remember where they were written, and model errors that say so.

Scenario files come from strangers: tags, anchors and aliases (bombs), duplicate keys, documents over `MAX_BYTES` or nested
deeper than `MAX_DEPTH` are refused before any model sees them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from laggard.errors import Problem, ScenarioError

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails
    from ruamel.yaml.nodes import Node

MAX_BYTES = 1 << 20
MAX_DEPTH = 32

KeyPath = tuple[str | int, ...]
YamlValue = None | bool | int | float | str | list["YamlValue"] | dict[str, "YamlValue"]
Model = TypeVar("Model", bound="BaseModel")


@dataclass(frozen=True)
class Source:
    """One parsed YAML file.

    Attributes:
        path: shown in messages.
        value: plain Python values.
        places: line and column, from 1, of every key path (of the value; of the key where the value is missing).
    """

    path: str
    value: YamlValue
    places: Mapping[KeyPath, tuple[int, int]]

    def problem(self, key: KeyPath, rule: str, fix: str = "", value: str | None = None) -> Problem:
        """A `Problem` located at `key`, or at its nearest written ancestor."""
        written = tuple(key)
        while written and written not in self.places:
            written = written[:-1]
        line, column = self.places.get(written, (1, 1))
        shown = _show(key, self.at(key)) if value is None else value
        return Problem(self.path, line, column, shown, rule, fix)

    def at(self, key: KeyPath) -> YamlValue:
        """The value at `key`, or None where nothing is written."""
        value = self.value
        for part in key:
            if isinstance(value, dict) and part in value:
                value = value[str(part)]
            elif isinstance(value, list) and isinstance(part, int) and part < len(value):
                value = value[part]
            else:
                return None
        return value


def parse_yaml(data: bytes | str, path: str) -> Source:
    """Parse one YAML document.

    Args:
        data: the file's content.
        path: shown in messages.

    Raises:
        ScenarioError: not UTF-8, not YAML, or YAML that a scenario file may not use.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    text = _decode(data, path)
    try:
        node = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        rule = f"not YAML: {error.problem or error.context}"
        raise ScenarioError((Problem(path, line, column, "", rule, "see yaml.org for the syntax"),)) from error
    except (YAMLError, ValueError, RecursionError) as error:
        raise ScenarioError((Problem(path, 1, 1, "", f"not YAML: {error}", "save the file as plain YAML"),)) from error
    places: dict[KeyPath, tuple[int, int]] = {}
    seen: set[int] = set()
    value = None if node is None else _convert(node, (), path, places, seen)
    return Source(path, value, places)


def validated(source: Source, model: type[Model], value: YamlValue = None) -> Model:
    """The source's value as an instance of `model`.

    Raises:
        ScenarioError: with one located problem per error of the model.
    """
    from pydantic import ValidationError

    try:
        return model.model_validate(source.value if value is None else value)
    except ValidationError as error:
        problems = tuple(_problem(source, model, details) for details in error.errors())
        raise ScenarioError(problems) from error


def _decode(data: bytes | str, path: str) -> str:
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
    except UnicodeDecodeError as error:
        problem = Problem(path, 1, 1, f"byte {error.start}", "a scenario file is UTF-8 text", "save it as UTF-8")
        raise ScenarioError((problem,)) from error
    if len(text) > MAX_BYTES:
        rule = f"a scenario file is at most {MAX_BYTES} characters"
        raise ScenarioError((Problem(path, 1, 1, f"{len(text)} characters", rule, "is this the right file?"),))
    return text.removeprefix("\ufeff")


def _refuse(node: Node, path: str, value: str, rule: str, fix: str) -> ScenarioError:
    mark = node.start_mark
    return ScenarioError((Problem(path, mark.line + 1, mark.column + 1, value, rule, fix),))


def _convert(
    node: Node, key: KeyPath, path: str, places: dict[KeyPath, tuple[int, int]], seen: set[int]
) -> YamlValue:
    from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

    if node.anchor is not None or id(node) in seen:
        raise _refuse(node, path, f"&{node.anchor}", "anchors and aliases are not allowed here", "write the value out")
    seen.add(id(node))
    if len(key) > MAX_DEPTH:
        raise _refuse(node, path, "", f"nested deeper than {MAX_DEPTH} levels", "flatten the file")
    places.setdefault(key, (node.start_mark.line + 1, node.start_mark.column + 1))
    if isinstance(node, MappingNode):
        return _convert_mapping(node, key, path, places, seen)
    if isinstance(node, SequenceNode):
        return [_convert(item, (*key, i), path, places, seen) for i, item in enumerate(node.value)]
    assert isinstance(node, ScalarNode)
    return _scalar(node, path)


def _convert_mapping(
    node: Node, key: KeyPath, path: str, places: dict[KeyPath, tuple[int, int]], seen: set[int]
) -> YamlValue:
    from ruamel.yaml.nodes import ScalarNode

    converted: dict[str, YamlValue] = {}
    for name_node, value_node in node.value:
        if not isinstance(name_node, ScalarNode):
            raise _refuse(name_node, path, "", "a key is a plain word", "write it as text")
        name = str(name_node.value)
        if name in converted:
            raise _refuse(name_node, path, name, "this key is already there", "keep one of them")
        if name == "<<":
            raise _refuse(name_node, path, name, "merge keys are not allowed here", "write the keys out")
        converted[name] = _convert(value_node, (*key, name), path, places, seen)
        mark = name_node.start_mark
        places.setdefault((*key, name, "#key"), (mark.line + 1, mark.column + 1))
    return converted


_PLAIN_TAGS = {"null", "bool", "int", "float", "str", "timestamp"}


def _scalar(node: Node, path: str) -> YamlValue:
    from ruamel.yaml import YAML

    tag = str(node.tag).rpartition(":")[2]
    if tag not in _PLAIN_TAGS or not str(node.tag).startswith("tag:yaml.org,2002:"):
        raise _refuse(node, path, str(node.tag), "tags are not allowed here", "write the plain value")
    text = str(node.value)
    if tag in ("str", "timestamp"):
        return text
    try:
        value = YAML(typ="safe", pure=True).constructor.construct_object(node)
    except (ValueError, OverflowError) as error:
        raise _refuse(node, path, text, f"not a {tag}: {error}", "quote it if it is text") from error
    if value is not None and not isinstance(value, bool | int | float):
        raise _refuse(node, path, text, "a value is text, a number, true, false or null", "quote it if it is text")
    return value


def _problem(source: Source, model: type[BaseModel], details: ErrorDetails) -> Problem:
    key = _written_key(source, details["loc"])
    kind = details["type"]
    if kind == "extra_forbidden":
        place = source.places.get((*key, "#key"))
        problem = source.problem(key, "unknown key", _known_keys(model, details["loc"]), value=str(key[-1]))
        return problem if place is None else Problem(problem.path, *place, problem.value, problem.rule, problem.fix)
    if kind == "missing":
        return source.problem(key[:-1], f"`{details['loc'][-1]}` is missing", "add it", value=_show(key[:-1], None))
    message = details["msg"].removeprefix("Value error, ")
    rule, _, fix = message.partition(" — ")
    return source.problem(key, rule, fix)


def _written_key(source: Source, location: Sequence[str | int]) -> KeyPath:
    """A pydantic location without the union tags it puts between keys."""
    key: KeyPath = ()
    for i, part in enumerate(location):
        parent = source.at(key)
        known = (isinstance(parent, dict) and part in parent) or (isinstance(parent, list) and isinstance(part, int))
        if known or i == len(location) - 1:
            key = (*key, part)
    return key


def _known_keys(model: type[BaseModel], location: Sequence[str | int]) -> str:
    if len(location) > 1:
        return "remove it, or see the shipped schema for the keys allowed here"
    names = sorted(field.alias or name for name, field in model.model_fields.items())
    return f"the keys are {', '.join(names)}"


def _show(key: KeyPath, value: YamlValue) -> str:
    name = ".".join(str(part) for part in key)
    if value is None:
        return name
    text = json.dumps(value, ensure_ascii=False, default=str)
    shown = text if len(text) <= 60 else text[:57] + "..."
    return f"{name}: {shown}" if name else shown
