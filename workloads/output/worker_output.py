"""Names of the files through which the processes of a training speak, and the writing of small ones
in one piece.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

Scalar = int | float | str | None


@dataclass(frozen=True)
class WorkerOutputDir:
    """A folder that all processes of a training share."""

    folder: Path

    def spans(self, rank: int, life: int = 0) -> Path:
        """Arrow stream of a rank's spans; each of its processes has one of its own (`life` is how
        many it had before).
        """
        return _of_life(self.folder / f"rank-{rank}.spans.arrow", life)

    def steps(self, rank: int, life: int = 0) -> Path:
        """Arrow stream of a rank's steps, as `spans`."""
        return _of_life(self.folder / f"rank-{rank}.steps.arrow", life)

    def ready(self, rank: int, life: int = 0) -> Path:
        """Exists once a rank (or the server, whose number follows the ranks') has met the others
        and built its model.
        """
        return _of_life(self.folder / f"ready-{rank}", life)

    def device_class(self, rank: int) -> Path:
        """Model of the GPU that a rank computes on; absent where that is the processor."""
        return self.folder / f"device-{rank}"

    def snapshot(self, evaluation: int) -> Path:
        """State of the model for one evaluation."""
        return self.folder / f"snapshot-{evaluation}.pt"

    def traffic(self, node: int) -> Path:
        """JSON of what a rank (or the server) says that it sent, and what its kernel says was
        acknowledged.
        """
        return self.folder / f"traffic-{node}"

    def part(self, number: int, rank: int) -> Path:
        """A rank's part of a snapshot that the coordinator has asked for (progress_reporter.py)."""
        return self.folder / f"snapshot-{number}.rank-{rank}"

    def work(self, rank: int, life: int = 0) -> Path:
        """Counts the work of a rank that is held to a share (`laggard.core.work_counter`), as
        `spans`.
        """
        return _of_life(self.folder / f"work-{rank}", life)

    @property
    def full_speed(self) -> Path:
        """File of the durations of each rank's steps at full speed (full_speed.py)."""
        return self.folder / "full_speed"

    @property
    def checkpoint(self) -> Path:
        """State of the model and the optimizer after the last step that was checkpointed."""
        return self.folder / "checkpoint.pt"

    @property
    def start_signal(self) -> Path:
        """The runner makes this file when training may begin."""
        return self.folder / "start_signal"

    @property
    def zero(self) -> Path:
        """JSON of when the first step began."""
        return self.folder / "zero"

    @property
    def done(self) -> Path:
        """JSON of how the training ended."""
        return self.folder / "done.json"

    @property
    def progress(self) -> Path:
        """JSON lines of the first rank's steps and of the evaluations."""
        return self.folder / "progress.jsonl"

    @property
    def evaluation_requests(self) -> Path:
        """JSON lines of the snapshots that are to be evaluated while training goes on."""
        return self.folder / "evaluation_requests.jsonl"

    @property
    def evaluations(self) -> Path:
        """JSON lines of the evaluations: number, step, accuracy, last arrival, resume."""
        return self.folder / "evaluations.jsonl"

    @property
    def decisions(self) -> Path:
        """JSON lines of what a strategy has decided while it trained: step, time, a sentence."""
        return self.folder / "decisions.jsonl"

    @property
    def heartbeat(self) -> Path:
        """File of all ranks' positions (heartbeat.py)."""
        return self.folder / "heartbeat"

    @property
    def start_barrier(self) -> Path:
        """File of the start barrier (start_barrier.py)."""
        return self.folder / "start_barrier"

    @property
    def progress_board(self) -> Path:
        """File of the progress board (progress_board.py)."""
        return self.folder / "progress_board"

    @property
    def links(self) -> Path:
        """Arrow stream of the link sampler."""
        return self.folder / "links.arrow"

    @property
    def data(self) -> Path:
        """Folder of the prepared dataset."""
        return self.folder / "data"


def _of_life(first: Path, life: int) -> Path:
    return first.with_name(f"{first.name}.{life + 1}") if life else first


def of_all_lives(first: Path) -> tuple[Path, ...]:
    """A rank's file, and those of the processes that took its place, as far as there are any."""
    found = [first]
    while (following := _of_life(first, len(found))).exists():
        found.append(following)
    return tuple(found)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that readers see whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(content)
    partial.rename(path)


def append_line(path: Path, values: Mapping[str, Scalar]) -> None:
    """Append one JSON line; several processes may do so to one file."""
    line = json.dumps(dict(values)).encode() + b"\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def read_lines(path: Path) -> list[dict[str, Scalar]]:
    """The complete JSON lines of a file; none where it does not exist. A line cut short by a kill
    is left out.
    """
    if not path.exists():
        return []
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    return [json.loads(line) for line in whole.splitlines() if line]
