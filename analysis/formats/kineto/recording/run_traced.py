"""Run of a program whose steps are recorded."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from laggard.analysis.formats.kineto.recording.laggard_record_steps import (
    FOLDER_VARIABLE,
    SKIP_VARIABLE,
    STEPS_VARIABLE,
)
from laggard.core.errors import InputError


@dataclass(frozen=True)
class TracedSteps:
    """Steps that are recorded.

    Attributes:
        folder: folder that gets one trace per rank.
        skip: number of first steps that are not recorded.
        count: number of steps that are recorded.
    """

    folder: Path
    skip: int
    count: int


def run_traced(command: Sequence[str], steps: TracedSteps) -> NoReturn:
    """Run a command whose processes record their steps, in place of this process.

    Args:
        command: program and arguments.
        steps: steps that are recorded.

    Raises:
        InputError: the program cannot be started, or the folder cannot be created.
    """
    try:
        steps.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"--out {steps.folder}: cannot be created: {error} — choose another folder"
        ) from error
    try:
        # The user's own command, as given.
        os.execvpe(command[0], [*command], build_environment(steps, os.environ))  # noqa: S606
    except OSError as error:
        raise InputError(
            f"{command[0]}: cannot be started: {error.strerror} — give a program and its arguments"
        ) from error


def build_environment(steps: TracedSteps, own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which a program's processes record their steps.

    Args:
        steps: steps that are recorded.
        own: environment without a recording.
    """
    before = own.get("PYTHONPATH")
    folders = [str(Path(__file__).parent), *([before] if before else [])]
    return {
        **own,
        "PYTHONPATH": os.pathsep.join(folders),
        FOLDER_VARIABLE: str(steps.folder.absolute()),
        SKIP_VARIABLE: str(steps.skip),
        STEPS_VARIABLE: str(steps.count),
    }
