"""Reporter of one rank without a server: sends its progress and, on request, its model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from laggard.workloads.coordination.progress_board import ProgressBoard
from laggard.workloads.models.flat_state import FlatState
from laggard.workloads.output.worker_output import WorkerOutputDir, write_whole


@dataclass
class ProgressReporter:
    """Reports of one rank to the coordinator.

    Attributes:
        rank: whose.
        progress_board: the memory that both share.
        output_dir: where parts of snapshots go.
        model: the rank's.
        weight: how much it counts in the mean of all, now.
        between_steps: whether the model is as it should be between steps only; else a thread beside
            the training gives it at once (`answer`).
    """

    rank: int
    progress_board: ProgressBoard
    output_dir: WorkerOutputDir
    model: nn.Module
    weight: Callable[[], float] = lambda: 1.0
    between_steps: bool = True
    _state: FlatState = field(init=False)
    _giving: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._state = FlatState(self.model)

    def finish_step(self, samples: int) -> None:
        """A step is done that so many samples were trained on; between steps the model is as it
        should be, and is given if requested.
        """
        self.progress_board.add(self.rank, samples)
        if self.between_steps:
            self.answer(self._state.read)

    def answer(self, read: Callable[[], torch.Tensor]) -> None:
        """Give the model, if it is requested."""
        requested = self.progress_board.requested_snapshots
        if requested > self.progress_board.given(self.rank):
            self._give(requested, read())

    def close(self) -> None:
        """Training is over: the model as it is now is the last snapshot's part."""
        self._give(self.progress_board.requested_snapshots + 1, self._state.read())

    def _give(self, number: int, state: torch.Tensor) -> None:
        now_ns = time.monotonic_ns()
        with self._giving:
            if number > self.progress_board.given(self.rank):
                write_part(self.output_dir, number, self.rank, state, self.weight())
                self.progress_board.give(self.rank, number, now_ns)


def write_part(
    output_dir: WorkerOutputDir, number: int, rank: int, state: torch.Tensor, weight: float
) -> None:
    """A rank's part of a snapshot, shape [parameters + buffers], and how much it counts."""
    whole = torch.cat([state.cpu(), torch.tensor([weight], dtype=state.dtype)])
    write_whole(output_dir.part(number, rank), whole.numpy().tobytes())


def read_parts(
    output_dir: WorkerOutputDir, number: int, ranks: Iterable[int], dtype: torch.dtype
) -> torch.Tensor:
    """The weighted mean of the parts of a snapshot that are there, shape [parameters + buffers];
    their files are removed.
    """
    kind = np.dtype(str(dtype).removeprefix("torch."))
    paths = [path for rank in ranks if (path := output_dir.part(number, rank)).exists()]
    # One after the other: the ranks train on meanwhile, and all their models at once would take the
    # caches from them.
    total, weights = torch.zeros(1, dtype=torch.float64), 0.0
    for path in paths:
        part = torch.from_numpy(np.fromfile(path, dtype=kind))
        weight = float(part[-1])
        total, weights = total.add(part[:-1], alpha=weight), weights + weight
        path.unlink()
    return total.div_(weights).to(dtype)
