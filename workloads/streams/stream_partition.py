"""Assignment of a stream's samples to ranks and steps: a pure function of seed and sizes.

The samples of a task are trained on in passes, and no batch has samples of two tasks. If samples
are born at certain ranks, every batch has about the same part of what each rank has of the task,
and a rank trains on its own samples only. A rank without samples of a task takes part in its steps
with none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from laggard.core.errors import InputError
from laggard.workloads.datasets.partition import Partition, Share
from laggard.workloads.streams.task_stream import TaskStream

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class StreamPartition(Partition):
    """Order of a stream for all ranks and steps.

    Attributes:
        stream: tasks with their samples.
        passes: passes over the samples of each task.
        births: rank at which each sample is born, [N]; None if each may be at any rank.
    """

    stream: TaskStream = field(kw_only=True)
    passes: int = field(default=1, kw_only=True)
    births: Indices | None = field(default=None, kw_only=True)
    _pass: dict[tuple[int, int], Indices] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def task_steps(self) -> tuple[int, ...]:
        """Return the number of steps of each task."""
        return tuple(self.passes * -(-len(task) // self.batch_size) for task in self.stream.tasks)

    @property
    def steps(self) -> int:
        """Return the number of steps of the whole stream."""
        return self._first_steps[-1]

    @property
    def last_step(self) -> int | None:
        """Return the last step of the stream."""
        return self.steps - 1

    @property
    def task_ends(self) -> tuple[int, ...]:
        """Return the last step of each task."""
        return tuple(first - 1 for first in self._first_steps[1:])

    def find_task(self, step: int) -> int:
        """Return the task of a step; that of the last one for any later step."""
        return min(bisect_right(self._first_steps, step) - 1, len(self.stream.tasks) - 1)

    def ends_task(self, step: int) -> bool:
        """Return whether a step is the last one of its task."""
        return step + 1 in self._first_steps

    def share(self, step: int, rank: int, sizes: Sequence[int] | None = None) -> Share:
        """Return a rank's samples in a step.

        Raises:
            ValueError: sizes are given, although samples belong to ranks.
        """
        if self.births is None:
            return super().share(step, rank, sizes)
        if sizes is not None:
            raise ValueError("samples that are born at ranks cannot be dealt in other sizes")
        batch = self._batch(step)
        return Share(batch[self.births[batch] == rank], len(batch), self.world_size)

    def samples_in(self, step: int) -> int:
        """Return the number of samples of all ranks in a step."""
        return len(self._batch(step))

    def samples_through(self, step: int) -> int:
        """Return the number of samples that all ranks have used when a step is finished."""
        task = self.find_task(step)
        before = sum(self.passes * len(each) for each in self.stream.tasks[:task])
        size = len(self.stream.tasks[task])
        passes, batches = divmod(step + 1 - self._first_steps[task], -(-size // self.batch_size))
        return before + passes * size + min(batches * self.batch_size, size)

    def evaluates_after(self, step: int, every_samples: int) -> bool:
        """Return whether this step ends a task or passes a multiple of `every_samples`."""
        return self.ends_task(step) or super().evaluates_after(step, every_samples)

    @cached_property
    def _first_steps(self) -> tuple[int, ...]:
        """Return the first step of each task, and the first step after the stream."""
        return tuple(int(each) for each in np.cumsum([0, *self.task_steps]))

    def _batch(self, step: int) -> Indices:
        if step >= self.steps:
            raise InputError(
                f"step {step}: the stream has {self.steps} steps — set workload.stop.steps to that"
                " at most, or give more passes"
            )
        task = self.find_task(step)
        in_pass = -(-len(self.stream.tasks[task]) // self.batch_size)
        number, position = divmod(step - self._first_steps[task], in_pass)
        start = position * self.batch_size
        return self._order_pass(task, number)[start : start + self.batch_size]

    def _order_pass(self, task: int, number: int) -> Indices:
        """Return the samples of a pass in their order, which is kept until the next pass."""
        if (task, number) not in self._pass:
            samples = self.stream.tasks[task]
            births = None if self.births is None else self.births[samples]
            order = _draw_order(len(samples), births, (self.seed, task, number))
            self._pass.clear()
            self._pass[task, number] = samples[order]
        return self._pass[task, number]


def _draw_order(count: int, births: Indices | None, seed: tuple[int, ...]) -> Indices:
    """Return places of samples in an order in which those of each rank are spread evenly."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(count)
    if births is None:
        return order
    ranks, place = births[order], np.zeros(count)
    for rank in np.unique(ranks):
        own = ranks == rank
        place[own] = (np.arange(own.sum()) + rng.random()) / own.sum()
    return order[np.argsort(place, kind="stable")]


def draw_births(labels: Indices, ranks: int, concentration: float, seed: int) -> Indices:
    """Draw the rank at which each sample is born, [N].

    The parts of each class at the ranks are drawn from a symmetric Dirichlet distribution (H. Hsu,
    H. Qi, M. Brown, *Measuring the effects of non-identical data distribution for federated visual
    classification*, 2019).

    Args:
        labels: class of each training sample, [N].
        ranks: number of ranks.
        concentration: parameter of the distribution; small ones give a class to few ranks.
        seed: seed of the generator.
    """
    rng, births = np.random.default_rng(seed), np.zeros(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        samples = rng.permutation(np.flatnonzero(labels == label))
        parts = rng.dirichlet(np.full(ranks, concentration))
        ends = np.round(np.cumsum(parts) * len(samples)).astype(np.int64)
        births[samples] = np.searchsorted(ends, np.arange(len(samples)), side="right").clip(
            max=ranks - 1
        )
    return births


def place_births(
    labels: Indices, tiers: Sequence[str], classes: Sequence[tuple[str, Sequence[int]]], seed: int
) -> Indices:
    """Return the rank at which each sample is born, [N], if tiers have certain classes.

    The samples of a class are divided evenly between the ranks of the tiers that have it, and those
    of a class that no tier has between all ranks.

    Raises:
        InputError: a tier has no rank.
    """
    rng, births = np.random.default_rng(seed), np.zeros(len(labels), dtype=np.int64)
    for tier, _ in classes:
        if tier not in tiers:
            known = ", ".join(dict.fromkeys(tiers))
            raise InputError(f"stream: no worker is in the layer {tier} — use one of {known}")
    for label in np.unique(labels).tolist():
        named = {tier for tier, group in classes if label in group}
        able = [rank for rank, tier in enumerate(tiers) if not named or tier in named]
        samples = rng.permutation(np.flatnonzero(labels == label))
        births[samples] = np.array(able)[np.arange(len(samples)) % len(able)]
    return births
