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

_MAX_SHOWN_CHARACTERS = 120
SCENARIO_FILES = ("layers_services", "network", "workflow", "heterogeneity", "workload")


@dataclass(frozen=True)
class Override:
    """One `--set` option.

    Attributes:
        text: option as written.
        file: name of the file without `.yaml`.
        key: key path within the file.
        value: new value.
    """

    text: str
    file: str
    key: KeyPath
    value: YamlValue

    @property
    def origin(self) -> str:
        """Return the name of the override in messages."""
        return _format_origin(self.text)


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
        value = parse_yaml(written, _format_origin(text)).value
    except ScenarioError as error:
        raise ScenarioError(tuple(replace(p, line=0, column=0) for p in error.problems)) from error
    return Override(
        text, file, tuple(int(p) if p.isdecimal() and len(p) < 9 else p for p in parts), value
    )


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
    return YamlSource(source.path, value, places, {**origins, key: override.origin})


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
        inner, spelled = _replace_value(known.get(str(part)), below, override)
        return {**known, str(part): inner}, (str(part), *spelled)
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
