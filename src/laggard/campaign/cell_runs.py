"""Run of one cell as `laggard run` in a process of its own, and the search for a lost one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from laggard.campaign.campaign_file import CampaignFile
from laggard.campaign.cells import Cell
from laggard.campaign.run_subprocess import (
    SubprocessRun,
    build_run_words,
    run_in_subprocess,
)
from laggard.run_folder.fidelity_checks import FidelityPolicy
from laggard.run_folder.results import build_result_document
from laggard.run_folder.store import list_runs, load_record

_POLL_S = 0.5


class CellRunner(Protocol):
    """Something that runs cells."""

    @property
    def starter_pid(self) -> int:
        """Process id of the parent of every run."""

    def find_stop_reason(self, cell: Cell) -> str | None:
        """Return why no further cell can be run; None if this one can."""

    def run(self, cell: Cell, token: str) -> SubprocessRun:
        """Run a cell to its end; the token is recorded in the run's command."""


@dataclass(frozen=True)
class ProcessRunner:
    """Runner that starts `laggard run` for every cell.

    Attributes:
        campaign: campaign whose cells are run.
        runs: folder of the run folders.
        fidelity: reaction to a failed fidelity check before training.
        options: further options of `laggard run`, such as `--on`.
        on_tick: function to call about once a second.
    """

    campaign: CampaignFile
    runs: Path
    fidelity: FidelityPolicy = "require"
    options: Sequence[str] = ()
    on_tick: Callable[[], object] | None = None

    @property
    def starter_pid(self) -> int:
        """Process id of the parent of every run."""
        return os.getpid()

    def find_stop_reason(self, cell: Cell) -> str | None:  # noqa: ARG002
        """Return None, since a process can always be started."""
        return None

    def run(self, cell: Cell, token: str) -> SubprocessRun:
        """Run a cell to its end; it ends with this process."""
        return run_in_subprocess(
            cell.setup.scenario,
            cell.overrides(),
            self.runs,
            command=self._build_command(token),
            fidelity=self.fidelity,
            capture_errors=True,
            on_tick=self.on_tick,
        )

    def build_words(self, cell: Cell, token: str) -> Sequence[str]:
        """Return the words after `laggard` that run a cell."""
        return build_run_words(
            cell.setup.scenario,
            cell.overrides(),
            self.runs,
            self._build_command(token),
            self.fidelity,
        )

    def _build_command(self, token: str) -> Sequence[str]:
        command = ["run", f"--cell={token}", *self.options]
        for option, value in (
            ("--artifacts", self.campaign.artifacts),
            ("--app-conf", self.campaign.app_conf),
            ("--for", self.campaign.duration),
        ):
            command += [] if value is None else [f"{option}={value}"]
        return command


def make_token(digest: str, number: int, starter_pid: int) -> str:
    """Return the text that identifies an attempt, with the process that starts it."""
    return f"{digest}-{number}-{starter_pid}"


def get_starter(token: str) -> int:
    """Return the process that started the run with this token.

    Raises:
        ValueError: the text is no token.
    """
    digest, number, pid = token.split("-")
    if not digest.isalnum() or not number.isdecimal() or not pid.isdecimal():
        raise ValueError(f"{token!r} is no token of a campaign")
    return int(pid)


def find_run_of(token: str, runs: Path) -> dict[str, object] | None:
    """Return the document of the run that a killed campaign had started; None if there is none.

    A run ends with its campaign, which takes some seconds; this waits for the end.
    """
    word = f"--cell={token}"
    for record, folder in reversed(list_runs(runs)):
        if word not in record.command:
            continue
        while record.status == "running":
            time.sleep(_POLL_S)
            record = load_record(folder)  # noqa: PLW2901  # the same run, later
        return dict(build_result_document(record, folder))
    return None


def describe_failure(ended: SubprocessRun) -> dict[str, object]:
    """Return the document of a run that wrote none: its status, and the last line of its errors."""
    lines = [line for line in ended.errors.splitlines() if line.strip()]
    reason = lines[-1] if lines else f"it exited with status {ended.status} and no message"
    return {"status": "invalid" if ended.status == 2 else "failed", "error": reason}
