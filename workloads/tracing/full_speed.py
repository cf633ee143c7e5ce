"""CPU time of a worker's steps at full speed, measured before training.

One worker at a time measures on each core. A share of a core means a speed, even if the same step
takes more CPU time on a limited host (`laggard.core.work_counter`). Workers of one machine and one
model differ only by chance here, so their measurements are combined. The cost of steps of other
sizes lies on the line through the two measured sizes.
"""

from __future__ import annotations

import copy
import fcntl
import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from laggard.workloads.datasets.dataset import Batch, Split
from laggard.workloads.datasets.partition import Indices
from laggard.workloads.models.flat_state import FlatState

WARM_UP = 2
REPEATS = 6
BUDGET_S = 0.4
"""Seconds of measuring after which one step of each size is enough."""

_RECORD = struct.Struct("<qqqq")

Learn = Callable[[Batch], object]


@dataclass(frozen=True)
class Timed:
    """Shortest step times of one rank.

    Attributes:
        few: number of samples of the smaller batch.
        few_ns: CPU time of a step with the smaller batch.
        many: number of samples of the usual batch.
        many_ns: CPU time of a step with the usual batch.
    """

    few: int
    few_ns: int
    many: int
    many_ns: int


@dataclass(frozen=True)
class FullSpeed:
    """CPU time of a step of n samples: base_ns + n * sample_ns."""

    base_ns: float
    sample_ns: float

    @property
    def fixed_samples(self) -> float:
        """Number of samples that cost as much as the fixed part of a step; 0 if unknown."""
        return self.base_ns / self.sample_ns if self.sample_ns > 0 else 0.0

    def step_ns(self, samples: int) -> int:
        """Return the CPU time of a step's computing at full speed, in ns."""
        return round(self.base_ns + samples * self.sample_ns)


def fit_step_cost(timed: Iterable[Timed]) -> FullSpeed:
    """Fit one line to the measurements of all ranks of a machine.

    It goes through the lower quartiles of the cost per sample of each size.

    Raises:
        ValueError: no rank has measured anything.
    """
    known = tuple(timed)
    if not known:
        raise ValueError("no rank has measured its full speed")
    many_ns = float(np.quantile([each.many_ns / each.many for each in known], 0.25))
    few_ns = float(np.quantile([each.few_ns / each.few for each in known], 0.25))
    few, many = known[0].few, known[0].many
    if few == many:
        return FullSpeed(0.0, many_ns)
    # Noise must not make the cost per sample negative, nor the fixed part.
    sample_ns = min(max((many * many_ns - few * few_ns) / (many - few), 0.0), many_ns)
    return FullSpeed(many * (many_ns - sample_ns), sample_ns)


def measure_steps(train: Split, indices: Indices, fewest: int, learn: Learn) -> Timed:
    """Measure steps with all these samples and with half of them, on the thread's CPU clock.

    Args:
        train: training samples.
        indices: samples of a usual batch, shape [n].
        fewest: fewest samples that the model needs.
        learn: function that trains one step on a batch without changing the model.
    """
    many, few = len(indices), max(len(indices) // 2, fewest)
    # Warm up both sizes: libraries prepare themselves for new shapes in the first step.
    for count in (*[many] * WARM_UP, few):
        _time_step(train, indices[:count], learn)
    best = {few: 1 << 62, many: 1 << 62}
    until_s = time.monotonic() + BUDGET_S
    for _ in range(REPEATS):
        for count, shortest_ns in tuple(best.items()):
            best[count] = min(shortest_ns, _time_step(train, indices[:count], learn))
        if time.monotonic() > until_s:
            break
    return Timed(few, best[few], many, best[many])


def time_steps(
    train: Split, indices: Indices, learn: Learn, warm_up: int, repeats: int, budget_s: float
) -> tuple[float, ...]:
    """Return the CPU seconds of repeated steps on one batch, without the fetching of its samples.

    Args:
        train: training samples.
        indices: samples of the batch, shape [n].
        learn: function that trains one step on a batch without changing the model.
        warm_up: number of first steps that are not measured.
        repeats: number of measured steps.
        budget_s: seconds after which no further step is measured.
    """
    for _ in range(warm_up):
        _time_step(train, indices, learn)
    seconds: list[float] = []
    until_s = time.monotonic() + budget_s
    while len(seconds) < repeats and (not seconds or time.monotonic() < until_s):
        seconds.append(_time_step(train, indices, learn) / 1e9)
    return tuple(seconds)


def _time_step(train: Split, indices: Indices, learn: Learn) -> int:
    """Return the CPU time of one step, without the fetching of its samples."""
    raw = train.fetch(indices)
    began_ns = time.thread_time_ns()
    learn(train.prepare(raw))
    return time.thread_time_ns() - began_ns


def learner_on_a_copy(
    model: nn.Module,
    optimizer_of: Callable[[nn.Module], torch.optim.Optimizer],
    encode: Callable[[torch.Tensor], object] | None = None,
    *,
    reads: bool = False,
) -> Learn:
    """Return a function that trains one step on a copy of the model.

    It changes neither the model nor torch's random numbers.

    Args:
        model: model to copy.
        optimizer_of: function that makes the optimizer of the copy.
        encode: encoding of every step's gradients before they are sent, shape [parameters]; None
            for no encoding.
        reads: whether every step ends with a copy of the model for other ranks.
    """
    twin = copy.deepcopy(model)
    optimizer, state = optimizer_of(twin), FlatState(twin)

    def learn(batch: Batch) -> None:
        with torch.random.fork_rng(devices=[]):
            loss = cross_entropy(twin(batch.inputs), batch.labels)
            loss.backward()  # type: ignore[no-untyped-call]
            if encode is not None:
                encode(state.read_gradients()[: state.parameters])
            optimizer.step()
            if reads:
                state.read()
            optimizer.zero_grad()

    return learn


@contextmanager
def alone_on_core(path: Path) -> Iterator[None]:
    """Hold a lock so that one process per core runs the body of the `with` at a time.

    The lock is shared by the processes with the same file and the same first usable core.
    """
    core = min(os.sched_getaffinity(0))
    with path.open("ab") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX, 1, core)
        yield


def write_timed(path: Path, rank: int, timed: Timed) -> None:
    """Write the measurement of a rank to the common file of all ranks."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(
            descriptor,
            _RECORD.pack(timed.few, timed.few_ns, timed.many, timed.many_ns),
            rank * _RECORD.size,
        )
    finally:
        os.close(descriptor)


def read_timed(path: Path) -> tuple[Timed, ...]:
    """Return the measurements of all ranks of this machine that have measured."""
    records = _RECORD.iter_unpack(path.read_bytes())
    return tuple(Timed(*record) for record in records if record[0])
