"""Check of a task's values before the first one starts, and the digest of all that makes it."""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from pathlib import Path

from laggard.campaign.cells import Cell, CellSetup, CheckedSetup, make_digest
from laggard.campaign.tasks.registry import TASKS
from laggard.campaign.tasks.task_loop import TaskCall
from laggard.core.corrections.model_problems import validate_model
from laggard.core.errors import InputError, Problem, ScenarioError
from laggard.core.files.input_files import read_chunks
from laggard.core.yaml_source import YamlSource

_MAX_DIGESTS = 10_000


def check_task(command: str, setup: CellSetup) -> CheckedSetup:
    """Check the values of a setup of a command that needs no continuum.

    Raises:
        ScenarioError: the command has no such keys or values, or its input cannot be read.
    """
    values = {**setup.fixed, **setup.varied}
    folder = setup.scenario.parent
    # The setup has the values of several places of the campaign file, so no line is shown.
    origins = {(): f"command: {command}"}
    # Values of JSON are values of YAML.
    source = YamlSource(command, values, {}, origins)  # type: ignore[arg-type]
    task = validate_model(source, TASKS[command])
    try:
        contents = {
            os.path.relpath(path, folder): _digest_file(path) for path in task.list_inputs(folder)
        }
    except InputError as error:
        raise ScenarioError((Problem(f"command: {command}", 0, 0, "", str(error)),)) from error
    digest = make_digest(command, task.model_dump(mode="json"), contents)
    return CheckedSetup(setup, digest, task.get_seed())


def to_task_call(command: str, cell: Cell) -> TaskCall:
    """Return the call that computes a cell, with the values as the campaign file has them."""
    setup = cell.setup
    return TaskCall(cell.digest, command, {**setup.fixed, **setup.varied}, setup.scenario.parent)


def _digest_file(path: Path) -> str:
    """Return the digest of a file, which is read once although many cells analyze it."""
    stat = path.stat()
    return _digest_content(path, (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))


@lru_cache(_MAX_DIGESTS)
def _digest_content(path: Path, _version: tuple[int, ...]) -> str:
    digest = hashlib.sha256()
    for chunk in read_chunks(path):
        digest.update(chunk)
    return digest.hexdigest()
