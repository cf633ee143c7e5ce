"""Overrides of scenario files from the command line, such as `--set workload.batch_size=64`.

The first part names the file, and the rest is the path of keys below it. In a list, a part is a
position from 0; the position after the last one appends. The value is YAML. A problem with an
override is reported under the override's own text, not under a line of the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from laggard.core.errors import Problem, ScenarioError
from laggard.core.yaml_source import MAX_DEPTH, KeyPath, YamlSource, YamlValue, parse_yaml
from laggard.layers_services.e2clab.yaml_files import parse_e2clab_yaml

_MAX_SHOWN_CHARACTERS = 120
E2CLAB_FILES = ("layers_services", "network", "workflow")
"""Files of a scenario that E2Clab reads too; they are YAML 1.1."""

SCENARIO_FILES = (*E2CLAB_FILES, "heterogeneity", "workload")


@dataclass(frozen=True)
class Override:
    """One `--set` option.

    Attributes:
        text: option as written.
        file: name of the file without `.yaml`.
        key: key path within the file.
        source: new value, parsed.
    """

    text: str
    file: str
    key: KeyPath
    source: YamlSource

    @property
    def value(self) -> YamlValue:
        """Return the new value."""
        return self.source.value

    @property
    def origin(self) -> str:
        """Return the name of the override in messages."""
        return _format_origin(self.text)


def parse_file(name: str, data: bytes | str, path: str) -> YamlSource:
    """Parse the content of one file of a scenario in the YAML version of its format.

    Args:
        name: name of the file without `.yaml`.
        data: content.
        path: path that messages show.

    Raises:
        ScenarioError: the content cannot be read.
    """
    return parse_e2clab_yaml(data, path) if name in E2CLAB_FILES else parse_yaml(data, path)


def parse_override(text: str) -> Override:
    """Parse one `file.key=value`.

    Raises:
        ScenarioError: there is no `=`, the file is not one of a scenario's, or the value is not
            YAML.
    """
    path, equals, written = text.partition("=")
    file, *parts = path.strip().split(".")
    if not equals or not all(parts):
        raise _create_error(
            text,
            path,
            "an override must be written file.key=value",
            "for example --set workload.batch_size=64",
        )
    if len(parts) > MAX_DEPTH:
        raise _create_error(
            text, "", f"a key path must have at most {MAX_DEPTH} parts", "use a shorter path"
        )
    if file not in SCENARIO_FILES:
        raise _create_error(
            text, file, "not a file of a scenario", f"the files are {', '.join(SCENARIO_FILES)}"
        )
    try:
        source = parse_file(file, written, _format_origin(text))
    except ScenarioError as error:
        raise ScenarioError(tuple(replace(p, line=0, column=0) for p in error.problems)) from error
    key = tuple(int(p) if p.isdecimal() and len(p) < 9 else p for p in parts)
    return Override(text, file, key, source)


def apply_overrides(source: YamlSource, overrides: Sequence[Override]) -> YamlSource:
    """Return the source as if the overrides were part of the file; a later one wins.

    A model validates new keys later.

    Args:
        source: a parsed scenario file.
        overrides: overrides of this file.

    Raises:
        ScenarioError: a key path leads through a plain value or past the end of a list.
    """
    for override in overrides:
        source = _apply_override(source, override)
    return source


def _apply_override(source: YamlSource, override: Override) -> YamlSource:
    value, key = _replace_value(source.value, override.key, override)
    # The replaced value has no place in the file, nor has anything below it.
    places = {
        written: place for written, place in source.positions.items() if written[: len(key)] != key
    }
    origins = {
        written: origin for written, origin in source.origins.items() if written[: len(key)] != key
    }
    readings = {
        written: text for written, text in source.readings.items() if written[: len(key)] != key
    } | {(*key, *below): text for below, text in override.source.readings.items()}
    return YamlSource(source.path, value, places, {**origins, key: override.origin}, readings)


def _replace_value(value: YamlValue, key: KeyPath, override: Override) -> tuple[YamlValue, KeyPath]:
    """Return `value` with the override's value at `key`, and `key` as spelled in the file.

    A part such as `1` may be a text key or a position; the file's value decides.
    """
    if not key:
        return override.value, ()
    part, below = key[0], key[1:]
    if value is None and part == 0:
        value = []
    if value is None or isinstance(value, dict):
        known = value or {}
        name = part if part in known else str(part)
        inner, spelled = _replace_value(known.get(name), below, override)
        return {**known, name: inner}, (name, *spelled)
    if isinstance(value, list):
        if not isinstance(part, int) or part > len(value):
            rule = f"this list has {len(value)} entries, counted from 0"
            raise _create_error(
                override.text,
                str(part),
                rule,
                "give the position of an entry, or the next position to append one",
            )
        inner, spelled = _replace_value(value[part] if part < len(value) else None, below, override)
        return [*value[:part], inner, *value[part + 1 :]], (part, *spelled)
    path = ".".join(map(str, (override.file, *override.key[: len(override.key) - len(key)])))
    raise _create_error(
        override.text,
        path,
        "this is a plain value, so it has no keys",
        "replace the whole value, for example key={a: 1}",
    )


def _format_origin(text: str) -> str:
    shown = (
        text if len(text) <= _MAX_SHOWN_CHARACTERS else text[: _MAX_SHOWN_CHARACTERS - 3] + "..."
    )
    return f"--set {shown}"


def _create_error(text: str, value: str, rule: str, fix: str) -> ScenarioError:
    return ScenarioError((Problem(_format_origin(text), 0, 0, value, rule, fix),))
