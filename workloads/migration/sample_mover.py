"""Transfer of samples between ranks, in a thread beside the training, and the samples received."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from laggard.core.errors import WorkerError
from laggard.workloads.datasets.dataset import Array, Batch, Indices, Raw, Split
from laggard.workloads.migration.held_samples import Move
from laggard.workloads.streams.sample_exchange import SendRecorder


@dataclass
class MigratedSplit:
    """Training samples of a host: its own at first, and those that it has received.

    Attributes:
        own: training samples, of which the host stores a part.
    """

    own: Split
    _rows: npt.NDArray[np.int64] = field(init=False)
    _received: list[Array] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Row of each received sample among the received ones; -1 for the host's own.
        self._rows = np.full(len(self.own), -1, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.own)

    def fetch(self, indices: Indices) -> Raw:
        """Read samples: received ones from where they were put, others from the own storage."""
        rows = self._rows[indices]
        raw = self.own.fetch(indices)
        if not (rows >= 0).any():
            return raw
        assert isinstance(raw.inputs, np.ndarray)
        inputs = raw.inputs.copy()
        received = np.concatenate(self._received)
        inputs[rows >= 0] = received[rows[rows >= 0]]
        return Raw(inputs, raw.labels, raw.extra_bytes)

    def prepare(self, raw: Raw) -> Batch:
        """Convert samples to tensors."""
        return self.own.prepare(raw)

    def store(self, samples: Indices, inputs: Array) -> None:
        """Keep samples that another host has sent."""
        before = sum(map(len, self._received))
        self._rows[samples] = np.arange(before, before + len(samples))
        self._received.append(inputs)


@dataclass
class SampleMover:
    """Sender and receiver of the samples of one migration after another.

    Attributes:
        train: training samples of this rank's host.
        rank: this rank.
        group: process group of the moves alone, since a group belongs to one thread.
        recorder: trace of this rank.
    """

    train: MigratedSplit
    rank: int
    group: dist.ProcessGroup
    recorder: SendRecorder
    _thread: threading.Thread | None = None
    _arrived: list[tuple[Indices, Array]] = field(default_factory=list)
    _error: Exception | None = None

    def start(self, moves: Sequence[Move], tag: int) -> None:
        """Begin to send and receive this rank's part of a migration.

        Args:
            moves: all moves.
            tag: number of the migration.
        """
        self._arrived = []
        self._thread = threading.Thread(
            target=self._run, args=(moves, tag), name="migration", daemon=True
        )
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        """Return whether this rank's part of the migration is over.

        Raises:
            WorkerError: a transfer failed, for example because a rank ended.
        """
        if self._error is not None:
            raise WorkerError(
                f"the migration of samples failed: {self._error}", self.rank, "migration"
            ) from self._error
        return self._thread is not None and not self._thread.is_alive()

    def store_received(self) -> None:
        """Let the training use the samples that have been received."""
        for samples, inputs in self._arrived:
            self.train.store(samples, inputs)

    def _run(self, moves: Sequence[Move], tag: int) -> None:
        try:
            self._exchange(moves, tag)
        # gloo raises RuntimeError for a rank that ended; the training then fails with it.
        except Exception as error:  # noqa: BLE001 - it is raised again where the end is asked for
            self._error = error

    def _exchange(self, moves: Sequence[Move], tag: int) -> None:
        begun_ns, sends, receives = time.monotonic_ns(), [], []
        for move in moves:
            if move.source == self.rank:
                content = torch.from_numpy(self._fetch(move.samples))
                sends.append(
                    (move.target, content, dist.isend(content, move.target, self.group, tag))
                )
            elif move.target == self.rank:
                place = torch.from_numpy(np.empty_like(self._fetch(move.samples)))
                work = dist.irecv(place, move.source, self.group, tag)
                receives.append((move.samples, place, work))
        for target, content, work in sends:
            _finish(work)
            ended_ns = time.monotonic_ns()
            self.recorder.record_background_send(begun_ns, ended_ns, target, content.nbytes)
        for samples, place, work in receives:
            _finish(work)
            self._arrived.append((samples, place.numpy()))

    def _fetch(self, samples: Indices) -> Array:
        inputs = self.train.fetch(samples).inputs
        assert isinstance(inputs, np.ndarray)
        return np.ascontiguousarray(inputs)


def _finish(work: dist.Work | None) -> None:
    """Wait for a transfer, which torch calls None only on a rank outside the group."""
    assert work is not None
    work.wait()
