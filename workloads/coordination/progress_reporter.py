"""Reporter of one rank without a server: reports its progress and, on request, its model."""

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
    """Reporter of one rank to the training coordinator.

    Attributes:
        rank: number of the rank.
        progress_board: shared memory that the coordinator reads.
        output_dir: folder for the parts of snapshots.
        model: model of the rank.
        weight: function that returns the current weight of the model in the mean of all.
        between_steps: whether the model is complete between steps only; otherwise a background
            thread gives it at once (`answer`).
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
        """Count a finished step of `samples` samples, and give the model if it is requested."""
        self.progress_board.add(self.rank, samples)
        if self.between_steps:
            self.answer(self._state.read)

    def answer(self, read: Callable[[], torch.Tensor]) -> None:
        """Give the model if it is requested.

        Args:
            read: function that returns the model as one vector.
        """
        requested = self.progress_board.requested_snapshots
        if requested > self.progress_board.given(self.rank):
            self._give(requested, read())

    def close(self) -> None:
        """Give the current model as this rank's part of the last snapshot, after training."""
        self._give(self.progress_board.requested_snapshots + 1, self._state.read())

    def _give(self, number: int, state: torch.Tensor) -> None:
        now_ns = time.monotonic_ns()
        # The training thread and the background thread may both give a part.
        with self._giving:
            if number > self.progress_board.given(self.rank):
                write_part(self.output_dir, number, self.rank, state, self.weight())
                self.progress_board.give(self.rank, number, now_ns)


def write_part(
    output_dir: WorkerOutputDir, number: int, rank: int, state: torch.Tensor, weight: float
) -> None:
    """Write a rank's part of a snapshot and its weight.

    Args:
        output_dir: folder of the part.
        number: number of the snapshot.
        rank: number of the rank.
        state: model as one vector, shape [parameters + buffers].
        weight: weight of the model in the mean.
    """
    # The last number of a part is its weight.
    whole = torch.cat([state.cpu(), torch.tensor([weight], dtype=state.dtype)])
    write_whole(output_dir.part(number, rank), whole.numpy().tobytes())


def read_parts(
    output_dir: WorkerOutputDir,
    number: int,
    ranks: Iterable[int],
    dtype: torch.dtype,
    *,
    remove: bool = True,
) -> torch.Tensor:
    """Return the weighted mean of a snapshot's parts, and perhaps remove their files.

    Missing parts are left out. The shape is [parameters + buffers].
    """
    kind = np.dtype(str(dtype).removeprefix("torch."))
    paths = [path for rank in ranks if (path := output_dir.part(number, rank)).exists()]
    # Read one part at a time: the ranks continue to train, and all their models at once would
    # evict their data from the caches.
    total, weights = torch.zeros(1, dtype=torch.float64), 0.0
    for path in paths:
        part = torch.from_numpy(np.fromfile(path, dtype=kind))
        weight = float(part[-1])
        total, weights = total.add(part[:-1], alpha=weight), weights + weight
        if remove:
            path.unlink()
    return total.div_(weights).to(dtype)
