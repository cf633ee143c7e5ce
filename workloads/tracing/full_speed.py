"""The CPU time that a worker's steps take at full speed: measured before training, one worker at a
time on each core.

A share of a core is to mean a speed, also where the same step takes more CPU time because its host
is held back (`laggard.core.work_counter`). Workers of one machine and one model differ by nothing
but chance here, so what all of them measured is taken together; steps of other sizes cost what lies
on the line through the two sizes measured.
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
"""After this much of measuring, one step of each size is enough."""

_RECORD = struct.Struct("<qqqq")

Learn = Callable[[Batch], object]


@dataclass(frozen=True)
class Timed:
    """One rank's best times.

    Attributes:
        few: samples of the smaller batch.
        few_ns: CPU time of a step with it.
        many: samples of the usual batch.
        many_ns: CPU time of a step with it.
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
        """Samples that the fixed part of a step is worth; 0 where it is not known from that of
        samples.
        """
        return self.base_ns / self.sample_ns if self.sample_ns > 0 else 0.0

    def step_ns(self, samples: int) -> int:
        """CPU ns that the computing of a step takes at full speed."""
        return round(self.base_ns + samples * self.sample_ns)


def fit_step_cost(timed: Iterable[Timed]) -> FullSpeed:
    """What all ranks of a machine measured, as one line: through the lower quartiles of the cost of
    each size.

    Raises:
        ValueError: nobody measured anything.
    """
    known = tuple(timed)
    if not known:
        raise ValueError("no rank has measured its full speed")
    many_ns = float(np.quantile([each.many_ns / each.many for each in known], 0.25))
    few_ns = float(np.quantile([each.few_ns / each.few for each in known], 0.25))
    few, many = known[0].few, known[0].many
    if few == many:
        return FullSpeed(0.0, many_ns)
    # More samples never take less time, nor none of them less than nothing.
    sample_ns = min(max((many * many_ns - few * few_ns) / (many - few), 0.0), many_ns)
    return FullSpeed(many * (many_ns - sample_ns), sample_ns)


def measure_steps(train: Split, indices: Indices, fewest: int, learn: Learn) -> Timed:
    """Time steps of all these samples, and of half of them; on the calling thread's CPU clock.

    Args:
        train: where the samples are.
        indices: the samples of a usual batch, shape [n].
        fewest: samples that the model needs.
        learn: one step on a batch, which must leave what is trained as it is.
    """
    many, few = len(indices), max(len(indices) // 2, fewest)
    # The smaller size too: in its first step libraries prepare themselves for its shapes.
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


def _time_step(train: Split, indices: Indices, learn: Learn) -> int:
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
    """A step that learns, on a copy of the model, which leaves the model and torch's random numbers
    as they are.

    Args:
        model: of which.
        optimizer_of: makes the optimizer of the copy.
        encode: what is done with every step's gradients before they are sent, shape [parameters];
            None for nothing.
        reads: whether every step ends with a copy of the model, for others.
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
    """Only one of the processes that share this file, and the first core that they may use, is in
    here at a time.
    """
    core = min(os.sched_getaffinity(0))
    with path.open("ab") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX, 1, core)
        yield


def write_timed(path: Path, rank: int, timed: Timed) -> None:
    """Put down what a rank measured, in the file of all ranks."""
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
    """What all ranks of this machine that measured anything have put down."""
    records = _RECORD.iter_unpack(path.read_bytes())
    return tuple(Timed(*record) for record in records if record[0])
