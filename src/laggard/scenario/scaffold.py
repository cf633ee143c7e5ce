"""Commented scenario to start from, which `laggard init DIR` writes."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from laggard.core.errors import InputError
from laggard.core.files.output_files import write_atomically
from laggard.scenario.json_schemas import get_schema_path
from laggard.scenario.overrides import SCENARIO_FILES

_SCHEMA_LINE = "# yaml-language-server: $schema="


def write_scenario_template(folder: Path) -> None:
    """Write the five files of the template; each names its JSON Schema for editors.

    Args:
        folder: folder to write to, created if missing; nothing in it is overwritten.

    Raises:
        InputError: a file exists already, or the folder cannot be written to.
    """
    existing = [name for name in SCENARIO_FILES if (folder / f"{name}.yaml").exists()]
    if existing:
        raise InputError(
            f"{folder / existing[0]}.yaml exists already and is not overwritten — give a folder"
            " without a scenario"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in SCENARIO_FILES:
            text = f"{_SCHEMA_LINE}{get_schema_path(name).as_uri()}\n{read_template(name)}"
            write_atomically(folder.resolve() / f"{name}.yaml", text.encode())
    except OSError as error:
        raise InputError(
            f"{error.filename or folder}: {error.strerror} — give another folder"
        ) from error


def read_template(name: str) -> str:
    """Return one file of the template, by name without `.yaml`."""
    return (files("laggard.scenario") / "template" / f"{name}.yaml").read_text(encoding="utf-8")
