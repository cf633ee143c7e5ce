"""Loader of batches: fetches samples, prepares them and moves them to the device."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from laggard.core.emulated_drive import Drive
from laggard.core.span_schema import Phase
from laggard.workloads.datasets.dataset import Batch, CachedSplit, Raw, Split
from laggard.workloads.datasets.partition import Indices, Share
from laggard.workloads.specification.datasets import SampleSource
from laggard.workloads.streams.rehearsal import Rehearsal
from laggard.workloads.streams.sample_arrivals import SampleArrivals
from laggard.workloads.tracing.recorder import Recorder


@dataclass(frozen=True)
class BatchLoader:
    """Loader of one rank's samples.

    Attributes:
        train: training samples.
        recorder: trace of the rank.
        device: device that the rank computes on.
        padded_to: fewest samples that the model can take (BatchNorm needs two).
        drive: drive of the host that stores the samples; None if it is not limited.
        source: source of the samples.
        rehearsal: old samples that are added to those of each step; None for none.
        arrivals: arrival of the samples; None if all are there from the start.
    """

    train: Split
    recorder: Recorder
    device: torch.device
    padded_to: int
    drive: Drive | None = None
    source: SampleSource = "stored"
    rehearsal: Rehearsal | None = None
    arrivals: SampleArrivals | None = None
    _prepared: dict[int, Batch] = field(default_factory=dict, init=False, repr=False)

    def begin(self, zero_ns: int) -> None:
        """Note the time at which the training began, CLOCK_MONOTONIC."""
        if self.arrivals is not None:
            self.arrivals.zero_ns = zero_ns

    def take_step(self, step: int, share: Share, begun_ns: int) -> tuple[Batch, Share]:
        """Load the samples of a step; return them, and the share with the old ones among them.

        Args:
            step: number of the step.
            share: new samples of the step.
            begun_ns: time at which the step began, CLOCK_MONOTONIC.
        """
        if self.arrivals is not None:
            self.recorder.enter(Phase.FETCH, work=0, at_ns=begun_ns)
            self.arrivals.wait(step, self.recorder.signal_alive)
            begun_ns = self.recorder.end_phase()
        if self.rehearsal is None:
            return self.take(share, begun_ns), share
        work = self.rehearsal.seen.spec.sample
        self.recorder.enter(Phase.REHEARSE, work=work, at_ns=begun_ns)
        share, received = self.rehearsal.extend(step, share)
        return self.take(share, self.recorder.end_phase(), received), share

    def take(self, share: Share, begun_ns: int, received: Raw | None = None) -> Batch:
        """Load the samples of a share, padded and on the device.

        Args:
            share: samples to load.
            begun_ns: time at which fetching began, CLOCK_MONOTONIC.
            received: the last samples of the share, if they are there already.
        """
        if received is None:
            indices = pad_indices(share.indices, self.padded_to)
        else:
            indices = share.indices[: len(share.indices) - len(received.labels)]
        self.recorder.enter(Phase.FETCH, work=len(indices), at_ns=begun_ns)
        if self.source != "prepared":
            return self._load(indices, begun_ns, received)
        # The first step of each size is the only one that fetches and prepares.
        if len(indices) not in self._prepared:
            self._prepared[len(indices)] = self._load(indices, begun_ns, received)
        return self._prepared[len(indices)]

    def _load(self, indices: Indices, begun_ns: int, received: Raw | None) -> Batch:
        recorder, raw = self.recorder, self._fetch(indices)
        if self.drive is not None and self.source in ("stored", "cold"):
            self.drive.transfer(
                "read", raw.stored_bytes, raw.accesses, begun_ns, recorder.signal_alive
            )
        raw = raw if received is None else join_samples(raw, received, self.padded_to)
        recorder.enter(Phase.PREP, work=len(raw.labels))
        batch = self.train.prepare(raw)
        if self.device.type != "cpu":
            recorder.enter(Phase.H2D, work=len(raw.labels))
            batch = batch.to(self.device)
        return batch

    def _fetch(self, indices: Indices) -> Raw:
        if self.source == "cold" and isinstance(self.train, CachedSplit):
            self.train.drop_from_cache(indices)
        return self.train.fetch(indices)


def join_samples(first: Raw, second: Raw, least: int) -> Raw:
    """Return the samples of both, which are rows of arrays, and at least `least` of them.

    Added samples repeat the last one and must not be counted.
    """
    assert isinstance(first.inputs, np.ndarray)
    assert isinstance(second.inputs, np.ndarray)
    rows = pad_indices(np.arange(len(first.labels) + len(second.labels)), least)
    return Raw(
        np.concatenate([first.inputs, second.inputs])[rows],
        np.concatenate([first.labels, second.labels])[rows],
        first.extra_bytes + second.extra_bytes,
    )


def fewest_samples(model: nn.Module) -> int:
    """Return the fewest samples that a model can be trained on.

    BatchNorm needs two, since one sample has no variance.
    """
    norm = nn.modules.batchnorm._BatchNorm  # noqa: SLF001 - the common base has no public name
    return 2 if any(isinstance(part, norm) for part in model.modules()) else 1


def pad_indices(indices: Indices, least: int) -> Indices:
    """Return at least `least` sample indices, for a model that needs that many.

    Added indices repeat the last one (or sample 0) and must not be counted as samples.
    """
    missing = least - len(indices)
    if missing <= 0:
        return indices
    filler = indices[-1:] if len(indices) else np.zeros(1, dtype=np.int64)
    return np.concatenate([indices, np.repeat(filler, missing)])
