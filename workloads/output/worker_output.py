"""Names of the files that the processes of a training share, and atomic writing of small ones."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from laggard.core.run_schema import LEDGER_FILE

Scalar = int | float | str | None


@dataclass(frozen=True)
class WorkerOutputDir:
    """Folder that all processes of a training share.

    A rank may have several processes one after another, if its worker leaves and joins again.
    `life` is the number of processes that the rank had before.
    """

    folder: Path

    def spans(self, rank: int, life: int = 0) -> Path:
        """Return the Arrow stream of a rank's spans; each process of the rank has its own."""
        return _of_life(self.folder / f"rank-{rank}.spans.arrow", life)

    def steps(self, rank: int, life: int = 0) -> Path:
        """Return the Arrow stream of a rank's steps; each process of the rank has its own."""
        return _of_life(self.folder / f"rank-{rank}.steps.arrow", life)

    def ready(self, rank: int, life: int = 0) -> Path:
        """Return the file that a process creates once it is connected and has built its model.

        The process is that of a rank or of the server, whose number follows the ranks'.
        """
        return _of_life(self.folder / f"ready-{rank}", life)

    def device_class(self, rank: int) -> Path:
        """Return the file with the model of a rank's GPU; it is absent for a rank without one."""
        return self.folder / f"device-{rank}"

    def snapshot(self, evaluation: int) -> Path:
        """Return the file with the state of the model for one evaluation."""
        return self.folder / f"snapshot-{evaluation}.pt"

    def traffic(self, node: int) -> Path:
        """Return the JSON file of a process's traffic.

        It contains the bytes that a rank (or the server) sent, and those that its kernel reports
        as acknowledged.
        """
        return self.folder / f"traffic-{node}"

    def part(self, number: int, rank: int) -> Path:
        """Return a rank's part of a snapshot that the coordinator has requested.

        `progress_reporter.py` writes it.
        """
        return self.folder / f"snapshot-{number}.rank-{rank}"

    def work(self, rank: int, life: int = 0) -> Path:
        """Return the work counter of a rank that has a CPU share (`laggard.core.work_counter`).

        Each process of the rank has its own.
        """
        return _of_life(self.folder / f"work-{rank}", life)

    @property
    def full_speed(self) -> Path:
        """Return the file of the durations of each rank's steps at full speed (full_speed.py)."""
        return self.folder / "full_speed"

    @property
    def initial_model(self) -> Path:
        """Return the file of the initial model that rank 0 has built (initial_model.py)."""
        return self.folder / "initial_model"

    @property
    def checkpoint(self) -> Path:
        """Return the file with the state of model and optimizer at the last checkpoint."""
        return self.folder / "checkpoint.pt"

    @property
    def weights(self) -> Path:
        """Return the file with the model of the last evaluation."""
        return self.folder / "weights.pt"

    @property
    def stream(self) -> Path:
        """Return the JSON lines of a stream: the last step of each task."""
        return self.folder / "stream.jsonl"

    @property
    def task_accuracies(self) -> Path:
        """Return the JSON lines of accuracies on all tasks, those of the initial model first."""
        return self.folder / "task_accuracies.jsonl"

    @property
    def start_signal(self) -> Path:
        """Return the file that the runner creates when training may begin."""
        return self.folder / "start_signal"

    @property
    def zero(self) -> Path:
        """Return the JSON file with the time at which the first step began."""
        return self.folder / "zero"

    @property
    def done(self) -> Path:
        """Return the JSON file that describes the end of training."""
        return self.folder / "done.json"

    @property
    def progress(self) -> Path:
        """Return the JSON lines of the first rank's steps and of the evaluations."""
        return self.folder / "progress.jsonl"

    @property
    def evaluation_requests(self) -> Path:
        """Return the JSON lines of the snapshots to be evaluated while training continues."""
        return self.folder / "evaluation_requests.jsonl"

    @property
    def evaluations(self) -> Path:
        """Return the JSON lines of the evaluations.

        A line has a number, step, accuracy, last arrival and resume.
        """
        return self.folder / "evaluations.jsonl"

    @property
    def decisions(self) -> Path:
        """Return the JSON lines of a strategy's decisions: step, time, a sentence."""
        return self.folder / "decisions.jsonl"

    @property
    def rounds(self) -> Path:
        """Return the JSON lines of the clients that rounds of a federated training selected."""
        return self.folder / "rounds.jsonl"

    @property
    def client_accuracies(self) -> Path:
        """Return the JSON lines of accuracies for the clients of a federated training."""
        return self.folder / "client_accuracies.jsonl"

    @property
    def ledger(self) -> Path:
        """Return the JSON lines of the tokens of a federated training."""
        return self.folder / LEDGER_FILE

    @property
    def updates(self) -> Path:
        """Return the file of a federated training's updates, if its clients are paid."""
        return self.folder / "updates.bin"

    @property
    def heartbeat(self) -> Path:
        """Return the file of all ranks' positions (heartbeat.py)."""
        return self.folder / "heartbeat"

    @property
    def start_barrier(self) -> Path:
        """Return the file of the start barrier (start_barrier.py)."""
        return self.folder / "start_barrier"

    @property
    def progress_board(self) -> Path:
        """Return the file of the progress board (progress_board.py)."""
        return self.folder / "progress_board"

    @property
    def links(self) -> Path:
        """Return the Arrow stream of the link sampler."""
        return self.folder / "links.arrow"

    @property
    def data(self) -> Path:
        """Return the folder of the prepared dataset."""
        return self.folder / "data"


def _of_life(first: Path, life: int) -> Path:
    return first.with_name(f"{first.name}.{life + 1}") if life else first


def of_all_lives(first: Path) -> tuple[Path, ...]:
    """Return the existing files of a rank's successive processes, given the file of the first.

    The first file is returned even if it does not exist.
    """
    found = [first]
    while (following := _of_life(first, len(found))).exists():
        found.append(following)
    return tuple(found)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically, so that readers see all of it or nothing."""
    # The process ID keeps the temporary files of several writers apart.
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(content)
    partial.rename(path)


def append_line(path: Path, values: Mapping[str, Scalar]) -> None:
    """Append one JSON line; several processes may append to the same file."""
    line = json.dumps(dict(values)).encode() + b"\n"
    # One write with O_APPEND, so that lines of several processes do not mix.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def read_lines(path: Path) -> list[dict[str, Scalar]]:
    """Read the complete JSON lines of a file; there are none if it does not exist.

    A last line that was cut short by a kill is left out.
    """
    if not path.exists():
        return []
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    return [json.loads(line) for line in whole.splitlines() if line]
