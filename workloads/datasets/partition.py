"""Assignment of samples to ranks and steps: a pure function of seed and sizes.

The same seed and sizes give the same assignment, so that a run can be repeated. Every epoch is a
new permutation, divided into batches; the last batch may be smaller. A batch is divided as evenly
as possible, unless sizes are given: with N samples on W ranks, the first N mod W ranks take one
more.

DDP averages the ranks' gradients with equal weights. Therefore the mean loss of n_i samples is
scaled by n_i * W / N. Then the sum of all ranks' gradients is the gradient of the mean over the
whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
import numpy.typing as npt

from laggard.workloads.specification.datasets import DataSettings

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Share:
    """Samples of one rank in one step.

    Attributes:
        indices: positions of the samples in the training set, shape [n].
        batch_size: number of samples of all ranks in this step.
        world_size: number of ranks.
        rehearsed: number of the last samples that are old ones of a stream.
    """

    indices: Indices
    batch_size: int
    world_size: int
    rehearsed: int = 0

    @property
    def loss_scale(self) -> float:
        """Return the factor W / N of the *summed* loss.

        With it, DDP's average is the mean over the whole batch.
        """
        return self.world_size / self.batch_size


@dataclass(frozen=True)
class Partition:
    """Order of a training set for all ranks and steps.

    Attributes:
        samples: size of the training set.
        batch_size: number of samples of all ranks in a step.
        world_size: number of ranks.
        seed: seed of the permutations.
    """

    samples: int
    batch_size: int
    world_size: int
    seed: int

    @classmethod
    def of(cls, settings: DataSettings, samples: int, world_size: int) -> Self:
        """Create the partition of a workload; no batch is larger than the training set."""
        return cls(samples, min(settings.batch_size, samples), world_size, settings.seed)

    @property
    def steps_per_epoch(self) -> int:
        """Return the number of batches in an epoch, including a smaller last one."""
        return -(-self.samples // self.batch_size)

    def share(self, step: int, rank: int, sizes: Sequence[int] | None = None) -> Share:
        """Return a rank's samples in a step; with a small last batch there may be none.

        Args:
            step: number of the step, from 0.
            rank: the rank.
            sizes: number of samples of each rank, `samples_in(step)` in total; as even as possible
                if None.

        Raises:
            ValueError: the sizes do not fit the batch of this step.
        """
        batch = self._batch(step)
        dealt = split_evenly(len(batch), self.world_size) if sizes is None else sizes
        if len(dealt) != self.world_size or min(dealt) < 0 or sum(dealt) != len(batch):
            raise ValueError(
                f"sizes {list(dealt)}: step {step} needs {self.world_size} sizes of 0 or more that"
                f" add up to {len(batch)}"
            )
        first = sum(dealt[:rank])
        return Share(batch[first : first + dealt[rank]], len(batch), self.world_size)

    def part(self, step: int, places: range) -> Share:
        """Return the samples at the given places of a step's batch.

        A strategy may assign such places to a rank (`next_batch_range`).
        """
        batch = self._batch(step)
        return Share(batch[places.start : places.stop], len(batch), self.world_size)

    def pick(self, step: int, rows: Sequence[int]) -> Share:
        """Return the samples at some rows of a step's batch; a small batch begins again."""
        batch = self._batch(step)
        picked = np.asarray(rows, dtype=np.int64) % len(batch)
        return Share(batch[picked], len(batch), self.world_size)

    def assign(self, step: int, rank: int, places: range | None) -> Share:
        """Return a rank's samples in a step: those at assigned places, or else an even share."""
        return self.share(step, rank) if places is None else self.part(step, places)

    def list_usual_batch(self, rank: int) -> Indices:
        """Return samples that a rank computes in one pass, as it usually does."""
        return self.share(0, rank).indices

    def samples_in(self, step: int) -> int:
        """Return the number of samples of all ranks in a step."""
        return min(self.batch_size, self.samples - step % self.steps_per_epoch * self.batch_size)

    def samples_through(self, step: int) -> int:
        """Return the number of samples that all ranks have used when a step is finished."""
        epochs, batches = divmod(step + 1, self.steps_per_epoch)
        return epochs * self.samples + min(batches * self.batch_size, self.samples)

    def evaluates_after(self, step: int, every_samples: int) -> bool:
        """Return whether this step passes a multiple of `every_samples` used samples."""
        before = self.samples_through(step - 1) if step else 0
        return self.samples_through(step) // every_samples > before // every_samples

    @property
    def last_step(self) -> int | None:
        """Return the step with the last samples; None, since epochs follow each other for ever."""
        return None

    @property
    def ends_with_step(self) -> bool:
        """Return whether training ends with a step, rather than with a number of samples."""
        return self.last_step is not None

    @property
    def task_ends(self) -> tuple[int, ...]:
        """Return the last step of each task; none, since only a stream has tasks."""
        return ()

    def _batch(self, step: int) -> Indices:
        epoch, position = divmod(step, self.steps_per_epoch)
        start = position * self.batch_size
        return _create_permutation(self.samples, self.seed, epoch)[start : start + self.batch_size]


def split_evenly(batch: int, ranks: int) -> tuple[int, ...]:
    """Divide a batch into sizes that differ by at most one, the larger ones first."""
    each, rest = divmod(batch, ranks)
    return tuple(each + (rank < rest) for rank in range(ranks))


@lru_cache(maxsize=2)
def _create_permutation(samples: int, seed: int, epoch: int) -> Indices:
    return np.random.default_rng((seed, epoch)).permutation(samples)
