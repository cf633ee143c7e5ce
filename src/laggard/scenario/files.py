"""The five files of a scenario folder: read with care, and written out as they were run."""

from __future__ import annotations

import difflib
import io
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from laggard.core.errors import Problem, ScenarioError
from laggard.core.yaml_source import MAX_BYTES, YamlSource, YamlValue, parse_yaml
from laggard.scenario.overrides import SCENARIO_FILES, Override, apply_overrides

OPTIONAL_FILES = ("heterogeneity",)
_E2CLAB_FILES = ("workflow_env.yaml",)
_TEMPLATE_FIX = "`laggard init DIR` writes a scenario to start from"


@dataclass(frozen=True)
class ScenarioFile:
    """One file as it lies in the folder (`data` is None where an optional one is missing) and as it
    is to be run.
    """

    name: str
    data: bytes | None
    source: YamlSource
    overrides: tuple[Override, ...]

    def as_run(self) -> bytes | None:
        """What to keep with the run: the file itself, or its values with the overrides applied."""
        if not self.overrides:
            return self.data
        origins = "".join(
            f"# {override.origin}\n" for override in self.overrides if override.origin.isprintable()
        )
        return f"# {self.name}.yaml, as run with\n{origins}".encode() + dump_yaml(self.source.value)


def read_files(
    folder: Path, overrides: Sequence[Override], optional: Sequence[str] = OPTIONAL_FILES
) -> tuple[Mapping[str, ScenarioFile], tuple[Problem, ...]]:
    """Read and parse every file of a scenario, overrides applied.

    Args:
        folder: the scenario.
        overrides: of any of its files.
        optional: files that may be missing, without `.yaml`.

    Returns:
        The files that could be read, by name without `.yaml`, and what is wrong with the others.

    Raises:
        ScenarioError: `folder` is no folder that can be read.
    """
    if not folder.is_dir():
        rule = (
            "a scenario is a folder, and this is a file"
            if folder.exists()
            else "there is no such folder"
        )
        raise ScenarioError((Problem(str(folder), 0, 0, "", rule, _TEMPLATE_FIX),))
    files: dict[str, ScenarioFile] = {}
    problems: list[Problem] = []
    for name in SCENARIO_FILES:
        try:
            named = tuple(override for override in overrides if override.file == name)
            files[name] = _read_file(folder, name, named, may_be_missing=name in optional)
        except ScenarioError as error:
            problems.extend(error.problems)
    return files, tuple(problems)


def find_file_warnings(folder: Path, files: Mapping[str, ScenarioFile]) -> tuple[Problem, ...]:
    """Files that look like a misspelt one of the scenario's, which nothing reads, and optional ones
    that are not there.
    """
    known = sorted(f"{name}.yaml" for name in SCENARIO_FILES)
    found: list[Problem] = []
    for path in sorted(folder.glob("*.y*ml")):
        near = difflib.get_close_matches(path.with_suffix(".yaml").name, known, n=1, cutoff=0.8)
        if near and path.name not in (*known, *_E2CLAB_FILES):
            rule = "no file of a scenario has this name, and nothing reads it"
            found.append(
                Problem(str(path), 0, 0, "", rule, f"rename it to {near[0]}, if that is what it is")
            )
    for name in OPTIONAL_FILES:
        if files[name].as_run() is None:
            rule = "the file is missing: all hosts are alike, and nothing changes during the run"
            found.append(
                Problem(str(folder / f"{name}.yaml"), 0, 0, "", rule, "fine, if it is meant so")
            )
    return tuple(found)


def read_bounded(path: Path, shown: str, most: int = 4 * MAX_BYTES) -> bytes:
    """The content of a regular file of at most `most` bytes.

    Raises:
        ScenarioError: missing, unreadable, too large, or something that is not a regular file.
    """
    try:
        # Without O_NONBLOCK a named pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ScenarioError(
                    (Problem(shown, 0, 0, "", "not a regular file", "put the file itself here"),)
                )
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                data = file.read(most + 1)
        finally:
            os.close(descriptor)
    except FileNotFoundError as error:
        raise ScenarioError(
            (Problem(shown, 0, 0, "", "the file is missing", _suggest_fix(path)),)
        ) from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ScenarioError(
            (
                Problem(
                    shown, 0, 0, "", f"cannot be read: {reason}", "check the path and its rights"
                ),
            )
        ) from error
    if len(data) > most:
        raise ScenarioError(
            (Problem(shown, 0, 0, "", f"larger than {most} bytes", "is this the right file?"),)
        )
    return data


def dump_yaml(value: YamlValue) -> bytes:
    """YAML that YAML 1.1 (E2Clab) and 1.2 read alike: whatever is not a plain word is quoted."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 1 << 16
    text = io.BytesIO()
    yaml.dump(_quote_strings(value), text)
    return text.getvalue()


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
    return ScenarioFile(name, data, apply_overrides(parse_yaml(data, shown), overrides), overrides)


def _suggest_fix(path: Path) -> str:
    other = path.with_suffix(".yml")
    if other.exists():
        return f"rename {other.name} to {path.name}"
    return "a workflow without tasks is `[]`" if path.name == "workflow.yaml" else _TEMPLATE_FIX


_PLAIN_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_-]*", re.ASCII)
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
