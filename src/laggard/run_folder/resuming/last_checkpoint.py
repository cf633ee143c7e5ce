"""Last checkpoint of a run, read in a process of its own.

Reading it takes torch, and collecting what a killed run left takes more such libraries. They start
threads, and a process with threads cannot enter the sandbox of an emulation afterwards.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from laggard.core.errors import InputError, LaggardError, RunFolderError

CHECKPOINT_FILE = "checkpoint.pt"


@dataclass(frozen=True)
class LastCheckpoint:
    """Training up to the last checkpoint of a run.

    Attributes:
        step: last step, from 0, of all runs of the training; None if the run has no checkpoint.
        elapsed_s: virtual seconds of the run's training, without evaluations; None in checkpoints
            of older versions.
        problem: reason why the checkpoint cannot be read.
    """

    step: int | None = None
    elapsed_s: float | None = None
    problem: str | None = None


_ANSWER = TypeAdapter(LastCheckpoint)


def find_last_checkpoint(folder: Path) -> LastCheckpoint:
    """Collect what a killed run left in its folder, and read its last checkpoint.

    Args:
        folder: run folder.

    Raises:
        InputError: the file is no checkpoint.
        RunFolderError: the process that reads it was ended.
    """
    command = (
        sys.executable,
        "-P",
        "-m",
        "laggard.run_folder.resuming.last_checkpoint",
        str(folder),
    )
    # Ctrl-C ends this process, which ends that one.
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=False, start_new_session=True
    )
    try:
        found = _ANSWER.validate_json(done.stdout)
    except ValidationError as error:
        raise RunFolderError(
            f"{folder}: reading its checkpoint ended with status {done.returncode} — see the"
            " messages above"
        ) from error
    if found.problem is not None:
        raise InputError(found.problem)
    return found


def _read_here(folder: Path) -> LastCheckpoint:
    from laggard.run_folder.recovery import recover_run
    from laggard.workloads.models.model_state import read_progress

    recover_run(folder)
    checkpoint = folder / CHECKPOINT_FILE
    if not checkpoint.is_file():
        return LastCheckpoint()
    try:
        so_far = read_progress(checkpoint)
    except LaggardError as error:
        return LastCheckpoint(problem=str(error))
    return LastCheckpoint(so_far.step, so_far.elapsed_s)


def main() -> None:
    """Print the last checkpoint of the run in the first argument, as JSON."""
    found = _read_here(Path(sys.argv[1]))
    sys.stdout.write(_ANSWER.dump_json(found).decode())


if __name__ == "__main__":
    main()
