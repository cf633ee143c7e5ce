"""Which samples each rank takes in each step: a pure function of the seed (and of sizes), so that a
run can be repeated.

Every epoch is a new permutation, cut into batches; the last may be smaller. A batch is dealt out as
evenly as it goes, unless it is told who takes how many: with N samples on W ranks the first N mod W
ranks take one more. DDP averages the ranks' gradients with equal weights, so the mean loss of n_i
samples is scaled by n_i * W / N; then the sum of all ranks' gradients is the gradient of the mean
over the whole batch.
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
    """One rank's part of one step.

    Attributes:
        indices: of the samples, shape [n].
        batch_size: samples of all ranks in this step.
        world_size: number of ranks.
    """

    indices: Indices
    batch_size: int
    world_size: int

    @property
    def loss_scale(self) -> float:
        """Factor W / N of the *summed* loss, which makes DDP's average the mean over the whole
        batch.
        """
        return self.world_size / self.batch_size


@dataclass(frozen=True)
class Partition:
    """The order of a training set of `samples` for all ranks and steps."""

    samples: int
    batch_size: int
    world_size: int
    seed: int

    @classmethod
    def of(cls, settings: DataSettings, samples: int, world_size: int) -> Self:
        """Build the partition of a workload; no batch is larger than the training set."""
        return cls(samples, min(settings.batch_size, samples), world_size, settings.seed)

    @property
    def steps_per_epoch(self) -> int:
        """Batches in a pass over the training set, the smaller last one included."""
        return -(-self.samples // self.batch_size)

    def share(self, step: int, rank: int, sizes: Sequence[int] | None = None) -> Share:
        """Return a rank's share of a step (from 0); with a small last batch it may be empty.

        Args:
            step: from 0.
            rank: whose share.
            sizes: how many samples each rank takes, `samples_in(step)` together; as evenly as it
                goes when absent.

        Raises:
            ValueError: the sizes are not those of a batch of this step.
        """
        batch = self._batch(step)
        dealt = split_evenly(len(batch), self.world_size) if sizes is None else sizes
        if len(dealt) != self.world_size or min(dealt) < 0 or sum(dealt) != len(batch):
            raise ValueError(
                f"sizes {list(dealt)}: step {step} has {len(batch)} samples for {self.world_size}"
                " ranks"
            )
        first = sum(dealt[:rank])
        return Share(batch[first : first + dealt[rank]], len(batch), self.world_size)

    def part(self, step: int, places: range) -> Share:
        """What lies at these places of a step's batch, for who was told which part of it is its
        own.
        """
        batch = self._batch(step)
        return Share(batch[places.start : places.stop], len(batch), self.world_size)

    def samples_in(self, step: int) -> int:
        """Samples of all ranks in a step."""
        return min(self.batch_size, self.samples - step % self.steps_per_epoch * self.batch_size)

    def samples_through(self, step: int) -> int:
        """Samples that all ranks have taken when a step is finished."""
        epochs, batches = divmod(step + 1, self.steps_per_epoch)
        return epochs * self.samples + min(batches * self.batch_size, self.samples)

    def evaluates_after(self, step: int, every_samples: int) -> bool:
        """Whether the samples taken pass a multiple of `every_samples` in this step."""
        before = self.samples_through(step - 1) if step else 0
        return self.samples_through(step) // every_samples > before // every_samples

    def _batch(self, step: int) -> Indices:
        epoch, position = divmod(step, self.steps_per_epoch)
        start = position * self.batch_size
        return _create_permutation(self.samples, self.seed, epoch)[start : start + self.batch_size]


def split_evenly(batch: int, ranks: int) -> tuple[int, ...]:
    """Sizes that differ by one at most, the first ones larger."""
    each, rest = divmod(batch, ranks)
    return tuple(each + (rank < rest) for rank in range(ranks))


@lru_cache(maxsize=2)
def _create_permutation(samples: int, seed: int, epoch: int) -> Indices:
    return np.random.default_rng((seed, epoch)).permutation(samples)
