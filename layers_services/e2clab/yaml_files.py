"""Reader of E2Clab's files: YAML 1.1 with the values of PyYAML's safe loader, which E2Clab uses.

`yes`, `on` and `off` are booleans, `010` is 8, `10:00` is 600 and `2_500` is 2500. Anchors,
aliases, merge keys and the standard tags work. PyYAML itself splits the text into events and
converts scalars, so a service class or a manager gets what E2Clab would give it. This module
only composes the events, with the place of every value and with bounds.

Refused, unlike in E2Clab: duplicate keys (E2Clab keeps the last one), sets, ordered maps, pairs
and binary values, numbers that are not finite or overflow 64 bits, nesting deeper than
`MAX_DEPTH`, and aliases that expand to more than `MAX_VALUES` values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from laggard.core.errors import Problem, ScenarioError, escape_unprintable
from laggard.core.yaml_source import (
    MAX_DEPTH,
    KeyPath,
    YamlScalar,
    YamlSource,
    YamlValue,
    decode_yaml_text,
    make_syntax_problem,
    truncate_text,
)

MAX_CHARACTERS = 1 << 20
"""Largest E2Clab file; a `network.yaml` with a rule for each pair of a hundred hosts fits."""

MAX_VALUES = 200_000
"""Largest number of values and keys of a file after the expansion of aliases and merge keys."""

_MAX_NUMBER_TEXT = 64
_STANDARD = "tag:yaml.org,2002:"
_SCALAR_TAGS = frozenset({"null", "bool", "int", "float", "str", "timestamp"})
_UNUSUAL_TAGS = frozenset({"set", "omap", "pairs", "binary"})

_Place = tuple[int, int]


class _Mark(Protocol):
    line: int
    column: int


class _YamlEvent(Protocol):
    """Event of PyYAML's parser; `value` and `style` exist for scalars only."""

    start_mark: _Mark
    anchor: str | None
    tag: str | None
    implicit: object
    value: str
    style: str | None


@dataclass(frozen=True)
class _Scalar:
    tag: str
    value: YamlScalar
    text: str
    is_plain: bool


@dataclass
class _Sequence:
    items: list[_Use] = field(default_factory=list)
    is_open: bool = True


@dataclass
class _Mapping:
    pairs: list[tuple[_Use, _Use]] = field(default_factory=list)
    is_open: bool = True


_Node = _Scalar | _Sequence | _Mapping


@dataclass(frozen=True)
class _Use:
    """Node at one place of the file; an alias is another use of the same node."""

    node: _Node
    place: _Place


def parse_e2clab_yaml(data: bytes | str, path: str) -> YamlSource:
    """Parse one YAML document as E2Clab does.

    Args:
        data: content of the file.
        path: path that messages show.

    Raises:
        ScenarioError: E2Clab could not read the content, or it is outside the bounds above.
    """
    import yaml

    text = decode_yaml_text(data, path, MAX_CHARACTERS)
    refuse = _Refusals(path)
    try:
        root = _Composer(yaml.SafeLoader(text), refuse).compose()
    except yaml.YAMLError as error:
        raise ScenarioError((make_syntax_problem(error, path),)) from error
    except (ValueError, OverflowError) as error:
        rule, fix = f"not YAML: {error}", "look for a wrong escape sequence in quoted text"
        raise refuse.at((1, 1), "", rule, fix) from error
    builder = _Builder(refuse)
    value = None if root is None else builder.build(root, ())
    return YamlSource(path, value, builder.positions, readings=builder.readings)


@dataclass(frozen=True)
class _Refusals:
    path: str

    def at(self, place: _Place, value: str, rule: str, fix: str) -> ScenarioError:
        shown = truncate_text(escape_unprintable(value))
        return ScenarioError((Problem(self.path, *place, shown, rule, fix),))


class _Loader(Protocol):
    """Part of `yaml.SafeLoader` that the composer uses."""

    check_event: Callable[..., bool]
    get_event: Callable[[], _YamlEvent]
    peek_event: Callable[[], _YamlEvent]
    resolve: Callable[[type[object], str | None, object], str]
    construct_object: Callable[[object], YamlScalar]


class _Composer:
    """Converter of the parser's events to nodes; it refuses what E2Clab refuses at once."""

    def __init__(self, loader: _Loader, refuse: _Refusals) -> None:
        self._loader = loader
        self._refuse = refuse
        self._anchors: dict[str, _Node] = {}

    def compose(self) -> _Use | None:
        """Return the only document's root; None if the file is empty."""
        from yaml import StreamEndEvent

        loader = self._loader
        loader.get_event()
        if loader.check_event(StreamEndEvent):
            return None
        loader.get_event()
        root = self._compose_use(0)
        loader.get_event()
        if not loader.check_event(StreamEndEvent):
            place = _place_of(loader.get_event())
            rule, fix = "E2Clab reads exactly one YAML document", "keep one of them"
            raise self._refuse.at(place, "---", rule, fix)
        return root

    def _compose_use(self, depth: int) -> _Use:
        from yaml import AliasEvent, ScalarEvent, SequenceStartEvent

        event = self._loader.get_event()
        place = _place_of(event)
        if isinstance(event, AliasEvent):
            return _Use(self._find_anchored(event, place), place)
        if depth > MAX_DEPTH:
            rule = f"nested deeper than {MAX_DEPTH} levels"
            raise self._refuse.at(place, "", rule, "flatten the file")
        if event.anchor in self._anchors:
            rule = "this anchor already exists in the file"
            raise self._refuse.at(place, f"&{event.anchor}", rule, "choose another name")
        if isinstance(event, ScalarEvent):
            return _Use(self._anchor(event, self._convert_scalar(event, place)), place)
        kind = "seq" if isinstance(event, SequenceStartEvent) else "map"
        self._check_collection_tag(event, kind, place)
        if kind == "seq":
            return _Use(self._compose_sequence(event, depth), place)
        return _Use(self._compose_mapping(event, depth), place)

    def _compose_sequence(self, event: _YamlEvent, depth: int) -> _Sequence:
        from yaml import SequenceEndEvent

        sequence = _Sequence()
        self._anchor(event, sequence)
        while not self._loader.check_event(SequenceEndEvent):
            sequence.items.append(self._compose_use(depth + 1))
        self._loader.get_event()
        sequence.is_open = False
        return sequence

    def _compose_mapping(self, event: _YamlEvent, depth: int) -> _Mapping:
        from yaml import MappingEndEvent

        mapping = _Mapping()
        self._anchor(event, mapping)
        while not self._loader.check_event(MappingEndEvent):
            mapping.pairs.append((self._compose_use(depth + 1), self._compose_use(depth + 1)))
        self._loader.get_event()
        mapping.is_open = False
        return mapping

    def _anchor(self, event: _YamlEvent, node: _Node) -> _Node:
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _find_anchored(self, event: _YamlEvent, place: _Place) -> _Node:
        name = str(event.anchor)
        node = self._anchors.get(name)
        if node is None:
            rule, fix = "no earlier value has this anchor", f"write &{name} before the value"
            raise self._refuse.at(place, f"*{name}", rule, fix)
        if not isinstance(node, _Scalar) and node.is_open:
            rule = "the alias is inside the value that it names, which would never end"
            raise self._refuse.at(place, f"*{name}", rule, "name another value")
        return node

    def _check_collection_tag(self, event: _YamlEvent, kind: str, place: _Place) -> None:
        if event.tag not in (None, "!", _STANDARD + kind):
            raise self._refuse_tag(str(event.tag), place)

    def _convert_scalar(self, event: _YamlEvent, place: _Place) -> _Scalar:
        from yaml import ScalarNode

        tag = event.tag
        if tag is None or tag == "!":
            tag = self._loader.resolve(ScalarNode, event.value, event.implicit)
        short = tag.removeprefix(_STANDARD)
        is_plain = event.style is None
        if short in ("merge", "value"):
            return _Scalar(short, event.value, event.value, is_plain)
        if short not in _SCALAR_TAGS or short == tag:
            raise self._refuse_tag(tag, place)
        if short in ("int", "float") and len(event.value) > _MAX_NUMBER_TEXT:
            raise self._refuse.at(
                place, event.value, "too long for a number", "quote it if it is text"
            )
        try:
            value = self._loader.construct_object(ScalarNode(tag, event.value))
        except (ValueError, LookupError, AttributeError, OverflowError, TypeError) as error:
            rule = f"E2Clab cannot read this as YAML 1.1's {short}"
            raise self._refuse.at(place, event.value, rule, "quote it if it is text") from error
        fault = _find_scalar_fault(value)
        if fault:
            raise self._refuse.at(place, event.value, fault, "quote it if it is text")
        return _Scalar(short, value, event.value, is_plain)

    def _refuse_tag(self, tag: str, place: _Place) -> ScenarioError:
        short = tag.removeprefix(_STANDARD)
        if short != tag and short in _UNUSUAL_TAGS:
            rule, fix = "sets, ordered maps, pairs and binary values are not allowed", "use a list"
            return self._refuse.at(place, f"!!{short}", rule, fix)
        shown = tag if short == tag else f"!!{short}"
        rule = "E2Clab's loader accepts only the standard tags of YAML, for values of their kind"
        return self._refuse.at(place, shown, rule, "remove the tag")


class _Builder:
    """Builder of the value from nodes; aliases and merge keys are expanded, within a bound.

    Attributes:
        positions: see `YamlSource`; the place of an alias, and the written place of what is below.
        readings: see `YamlSource`.
    """

    def __init__(self, refuse: _Refusals) -> None:
        self._refuse = refuse
        self._count = 0
        self.positions: dict[KeyPath, _Place] = {}
        self.readings: dict[KeyPath, str] = {}

    def build(self, use: _Use, key: KeyPath) -> YamlValue:
        """Return the value of a node at `key`."""
        self._count_value(use.place)
        if len(key) > MAX_DEPTH:
            rule = f"nested deeper than {MAX_DEPTH} levels"
            raise self._refuse.at(use.place, "", rule, "flatten the file")
        self.positions[key] = use.place
        node = use.node
        if isinstance(node, _Sequence):
            return [self.build(item, (*key, i)) for i, item in enumerate(node.items)]
        if isinstance(node, _Mapping):
            return self._build_mapping(node, key)
        if node.tag in ("merge", "value"):
            rule = f"E2Clab's loader accepts a bare {node.text} only as a key"
            raise self._refuse.at(use.place, node.text, rule, f'write "{node.text}"')
        if node.is_plain and not isinstance(node.value, str):
            self.readings[key] = node.text
        return node.value

    def _build_mapping(self, node: _Mapping, key: KeyPath) -> dict[YamlScalar, YamlValue]:
        taken: set[YamlScalar] = set()
        for name_use, _ in node.pairs:
            if not _is_merge(name_use):
                name = self._read_key(name_use)
                if name in taken:
                    rule = "this key already exists in the mapping; E2Clab would keep the last one"
                    raise self._refuse.at(name_use.place, str(name), rule, "keep one of them")
                taken.add(name)
        # A later pair replaces a merged one, whose value is not built.
        pairs = {self._read_key(name): (name, value) for name, value in self._flatten(node, 0)}
        converted: dict[YamlScalar, YamlValue] = {}
        for name, (name_use, value_use) in pairs.items():
            self.positions[*key, name, "#key"] = name_use.place
            converted[name] = self.build(value_use, (*key, name))
        return converted

    def _flatten(self, node: _Mapping, depth: int) -> Iterator[tuple[_Use, _Use]]:
        """Yield the pairs of a mapping in PyYAML's order: merged ones, then its own ones."""
        for name_use, value_use in node.pairs:
            if _is_merge(name_use):
                if depth > MAX_DEPTH:
                    rule = f"more than {MAX_DEPTH} mappings merge each other"
                    raise self._refuse.at(name_use.place, "<<", rule, "write the keys instead")
                for mapping in self._list_merged(value_use):
                    yield from self._flatten(mapping, depth + 1)
        for name_use, value_use in node.pairs:
            self._count_value(name_use.place)
            if not _is_merge(name_use):
                yield name_use, value_use

    def _list_merged(self, use: _Use) -> Iterator[_Mapping]:
        # PyYAML applies a list of mappings backward, so that an earlier one wins.
        uses = reversed(use.node.items) if isinstance(use.node, _Sequence) else (use,)
        for each in uses:
            self._count_value(each.place)
            if not isinstance(each.node, _Mapping):
                rule = "a merge key needs a mapping or a list of mappings"
                raise self._refuse.at(each.place, "<<", rule, "write `<<: *name` of a mapping")
            yield each.node

    def _read_key(self, use: _Use) -> YamlScalar:
        if not isinstance(use.node, _Scalar):
            rule = "a key must be a plain value, such as a word"
            raise self._refuse.at(use.place, "", rule, "write it as text")
        return use.node.value

    def _count_value(self, place: _Place) -> None:
        self._count += 1
        if self._count > MAX_VALUES:
            rule = f"the file expands to more than {MAX_VALUES} values, which is the limit"
            raise self._refuse.at(place, "", rule, "use fewer aliases")


def _is_merge(use: _Use) -> bool:
    return isinstance(use.node, _Scalar) and use.node.tag == "merge"


def _place_of(event: _YamlEvent) -> _Place:
    return event.start_mark.line + 1, event.start_mark.column + 1


def _find_scalar_fault(value: YamlScalar) -> str:
    """Return the rule that a value breaks; empty if there is none."""
    if isinstance(value, str):
        surrogate = any("\ud800" <= character <= "\udfff" for character in value)
        return "half of a surrogate pair is not a character" if surrogate else ""
    if isinstance(value, float) and not math.isfinite(value):
        return "a number must be finite"
    if isinstance(value, int) and not -(1 << 63) < value < 1 << 63:
        return "a whole number must have at most 63 bits"
    return ""
