"""The five files of a scenario folder: bounded reading, and writing as they were run."""

from __future__ import annotations

import difflib
import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from laggard.core.errors import FileReadError, Problem, ScenarioError
from laggard.core.files import input_files
from laggard.core.yaml_source import MAX_BYTES, YamlSource, YamlValue
from laggard.scenario.overrides import (
    E2CLAB_FILES,
    SCENARIO_FILES,
    Override,
    apply_overrides,
    parse_file,
)

_EMPTY_FILES = {
    "network.yaml": "a network without limits is `networks: []`",
    "workflow.yaml": "a workflow without tasks is `[]`",
}
OPTIONAL_FILES = ("heterogeneity", "workload")
_E2CLAB_FILES = ("workflow_env.yaml",)
_TEMPLATE_FIX = "`laggard init DIR` writes a complete scenario as a start"


@dataclass(frozen=True)
class ScenarioFile:
    """One file of a scenario, as it is in the folder and as it is run.

    Attributes:
        name: name without `.yaml`.
        data: content; None if an optional file is missing.
        source: parsed content, with overrides applied.
        overrides: overrides of this file.
    """

    name: str
    data: bytes | None
    source: YamlSource
    overrides: tuple[Override, ...]

    @property
    def has_content(self) -> bool:
        """Return whether the file exists, or an override gives it content."""
        return self.data is not None or bool(self.overrides)

    def as_run(self) -> bytes | None:
        """Return the content of the file as run: unchanged, or with the overrides applied."""
        if not self.overrides:
            return self.data
        # An override with a line break would end the comment, so it is left out.
        origins = "".join(
            f"# {override.origin}\n" for override in self.overrides if override.origin.isprintable()
        )
        dump = dump_e2clab_yaml if self.name in E2CLAB_FILES else dump_yaml
        return f"# {self.name}.yaml, as run with\n{origins}".encode() + dump(self.source.value)


def read_files(
    folder: Path, overrides: Sequence[Override]
) -> tuple[Mapping[str, ScenarioFile], tuple[Problem, ...]]:
    """Read and parse every file of a scenario, and apply overrides.

    Args:
        folder: the scenario folder.
        overrides: overrides of any of its files.

    Returns:
        The files that could be read, by name without `.yaml`, and the problems of the others.

    Raises:
        ScenarioError: `folder` is not a readable folder.
    """
    if not folder.is_dir():
        rule = (
            "a scenario must be a folder, but this is a file"
            if folder.exists()
            else "this folder does not exist"
        )
        raise ScenarioError((Problem(str(folder), 0, 0, "", rule, _TEMPLATE_FIX),))
    files: dict[str, ScenarioFile] = {}
    problems: list[Problem] = []
    for name in SCENARIO_FILES:
        try:
            named = tuple(override for override in overrides if override.file == name)
            files[name] = _read_file(folder, name, named, may_be_missing=name in OPTIONAL_FILES)
        except ScenarioError as error:
            problems.extend(error.problems)
    return files, tuple(problems)


def find_file_warnings(folder: Path, files: Mapping[str, ScenarioFile]) -> tuple[Problem, ...]:
    """Return warnings about files with misspelled names and missing optional files.

    A file with a misspelled name is one that Laggard does not read.
    """
    known = sorted(f"{name}.yaml" for name in SCENARIO_FILES)
    found: list[Problem] = []
    for path in sorted(folder.glob("*.y*ml")):
        near = difflib.get_close_matches(path.with_suffix(".yaml").name, known, n=1, cutoff=0.8)
        if near and path.name not in (*known, *_E2CLAB_FILES):
            rule = "no file of a scenario has this name, so it is not read"
            found.append(
                Problem(str(path), 0, 0, "", rule, f"if it is meant to be {near[0]}, rename it")
            )
    if not files["heterogeneity"].has_content:
        rule = "the file is missing: all hosts are alike, and nothing changes during the run"
        missing = str(folder / "heterogeneity.yaml")
        found.append(Problem(missing, 0, 0, "", rule, "ignore this if intended"))
    return tuple(found)


def read_bounded(path: Path, shown: str, most: int = 4 * MAX_BYTES) -> bytes:
    """Read a regular file of at most `most` bytes.

    Args:
        path: the file.
        shown: path that messages show.
        most: largest number of bytes.

    Raises:
        ScenarioError: the file is missing, unreadable, too large, or not a regular file.
    """
    if not os.path.lexists(path):
        raise ScenarioError((Problem(shown, 0, 0, "", "the file is missing", _suggest_fix(path)),))
    try:
        return input_files.read_bounded(path, most)
    except FileReadError as error:
        raise ScenarioError((Problem(shown, 0, 0, "", error.reason, error.fix),)) from error


def dump_yaml(value: YamlValue) -> bytes:
    """Write YAML that YAML 1.1 (E2Clab) and YAML 1.2 parsers read alike.

    Every string that is not a plain word is quoted.
    """
    from ruamel.yaml import YAML

    yaml = YAML()
    # By default, ruamel.yaml breaks long lines.
    yaml.width = 1 << 16
    text = io.BytesIO()
    yaml.dump(_quote_strings(value), text)
    return text.getvalue()


def dump_e2clab_yaml(value: YamlValue) -> bytes:
    """Write YAML 1.1 that E2Clab reads as the same value."""
    import yaml

    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=1 << 16)
    return text.encode()


def _read_file(
    folder: Path, name: str, overrides: tuple[Override, ...], *, may_be_missing: bool
) -> ScenarioFile:
    path = folder / f"{name}.yaml"
    shown = str(path)
    if may_be_missing and not os.path.lexists(path):
        return ScenarioFile(
            name, None, apply_overrides(YamlSource(shown, None, {}), overrides), overrides
        )
    data = read_bounded(path, shown)
    return ScenarioFile(
        name, data, apply_overrides(parse_file(name, data, shown), overrides), overrides
    )


def _suggest_fix(path: Path) -> str:
    other = path.with_suffix(".yml")
    if other.exists():
        return f"rename {other.name} to {path.name}"
    return _EMPTY_FILES.get(path.name, _TEMPLATE_FIX)


_PLAIN_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_-]*", re.ASCII)
# YAML 1.1 reads these words as booleans or null, even where YAML 1.2 reads text.
_SPECIAL_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


def _quote_strings(value: YamlValue) -> object:
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString

    if isinstance(value, dict):
        return {_quote_strings(key): _quote_strings(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_quote_strings(inner) for inner in value]
    if isinstance(value, str) and not (
        _PLAIN_WORD.fullmatch(value) and value.lower() not in _SPECIAL_WORDS
    ):
        return DoubleQuotedScalarString(value)
    return value
