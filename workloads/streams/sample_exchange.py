"""Exchange of old samples between ranks, in a thread beside the training.

Every rank follows the buffers of all ranks, so it knows without a message which samples it holds
for the steps of the others and which ones they hold for its own. The threads send samples a few
steps ahead of the training. This is the asynchronous rehearsal of T. Bouvier et al. (*Efficient
data-parallel continual learning with asynchronous distributed rehearsal buffers*, CCGrid 2024),
with gloo in place of RDMA.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from laggard.core.errors import WorkerError
from laggard.workloads.datasets.dataset import Raw, Split
from laggard.workloads.streams.rehearsal_buffer import HeldSample

Indices = npt.NDArray[np.int64]
Draws = Sequence[Sequence[HeldSample]]

STEPS_AHEAD = 2
"""Steps for which samples wait while the training does an earlier one."""
_PATIENCE_S = 0.2


@dataclass(frozen=True)
class ReceivedSamples:
    """Old samples of one step of one rank.

    Attributes:
        indices: their places in the training set, [r].
        raw: the samples in the same order.
    """

    indices: Indices
    raw: Raw


class SendRecorder(Protocol):
    """Trace of a rank, as far as it records what threads send."""

    def record_background_send(
        self, start_ns: int, end_ns: int, peer: int, payload_bytes: int
    ) -> None:
        """Record a send of a background thread."""


@dataclass
class SampleExchange:
    """Thread that sends old samples to the ranks that drew them, and receives this rank's own.

    Attributes:
        draw: function that returns the old samples of all ranks in a step; steps are asked for one
            after another.
        train: training samples, of which this rank sends those in its buffer.
        labels: class of each training sample, [N].
        rank: this rank.
        group: process group of the exchange alone, since a group belongs to one thread.
        recorder: trace of this rank.
    """

    draw: Callable[[int], Draws]
    train: Split
    labels: Indices
    rank: int
    group: dist.ProcessGroup
    recorder: SendRecorder
    _ready: queue.Queue[ReceivedSamples] = field(
        default_factory=lambda: queue.Queue(STEPS_AHEAD), init=False
    )
    _closed: threading.Event = field(default_factory=threading.Event, init=False)
    _error: Exception | None = field(default=None, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def start(self, first_step: int) -> None:
        """Begin to exchange the samples of this step and all later ones."""
        self._thread = threading.Thread(
            target=self._run, args=(first_step,), name="rehearsal", daemon=True
        )
        self._thread.start()

    def take(self) -> ReceivedSamples:
        """Wait for the old samples of the next step.

        Raises:
            WorkerError: the exchange failed, for example because a rank ended.
        """
        while True:
            try:
                return self._ready.get(timeout=_PATIENCE_S)
            except queue.Empty:
                if self._error is not None:
                    raise WorkerError(
                        f"the exchange of old samples failed: {self._error}", self.rank, "rehearsal"
                    ) from self._error

    def close(self) -> None:
        """End the exchange; what other ranks still wait for is not sent."""
        self._closed.set()

    def _run(self, step: int) -> None:
        try:
            while not self._closed.is_set():
                received = self._exchange(self.draw(step), step)
                while not self._closed.is_set():
                    try:
                        self._ready.put(received, timeout=_PATIENCE_S)
                        break
                    except queue.Full:
                        continue
                step += 1
        # gloo raises RuntimeError for a rank that ended; the training then fails with it.
        except Exception as error:  # noqa: BLE001 - it is raised again where samples are taken
            self._error = error

    def _exchange(self, draws: Draws, tag: int) -> ReceivedSamples:
        own = draws[self.rank]
        rows = self._fetch([each.sample for each in own if each.holder == self.rank])
        kept = {self.rank: rows}
        begun_ns, sends, waits = time.monotonic_ns(), [], []
        for rank, draw in enumerate(draws):
            wanted = [each.sample for each in draw if each.holder == self.rank]
            if rank != self.rank and wanted:
                content = torch.from_numpy(self._fetch(wanted))
                sends.append((rank, content, dist.isend(content, rank, self.group, tag)))
        for holder in range(len(draws)):
            count = sum(each.holder == holder for each in own)
            if holder != self.rank and count:
                place = torch.empty((count, *rows.shape[1:]), dtype=torch.from_numpy(rows).dtype)
                kept[holder] = place.numpy()
                waits.append(dist.irecv(place, holder, self.group, tag))
        for rank, content, work in sends:
            _finish(work)
            self.recorder.record_background_send(
                begun_ns, time.monotonic_ns(), rank, content.nbytes
            )
        for work in waits:
            _finish(work)
        return self._order(own, kept)

    def _fetch(self, samples: Sequence[int]) -> npt.NDArray[np.generic]:
        raw = self.train.fetch(np.array(samples, dtype=np.int64))
        assert isinstance(raw.inputs, np.ndarray)
        return np.ascontiguousarray(raw.inputs)

    def _order(
        self, own: Sequence[HeldSample], kept: dict[int, npt.NDArray[np.generic]]
    ) -> ReceivedSamples:
        """Return the samples in the order in which they were drawn."""
        indices = np.array([each.sample for each in own], dtype=np.int64)
        holders = np.array([each.holder for each in own], dtype=np.int64)
        inputs = np.empty((len(own), *kept[self.rank].shape[1:]), dtype=kept[self.rank].dtype)
        for holder, rows in kept.items():
            inputs[holders == holder] = rows
        return ReceivedSamples(indices, Raw(inputs, self.labels[indices]))


def _finish(work: dist.Work | None) -> None:
    """Wait for a transfer, which torch calls None only on a rank outside the group."""
    assert work is not None
    work.wait()
