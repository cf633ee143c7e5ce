"""Samples that the hosts of the ranks hold, and the steps in which ranks train on them; pure.

In every epoch each sample is trained on once, by the rank that holds it. A step takes samples from
all ranks in proportion to what each has not trained on yet, so all ranks finish the epoch together.
Every rank follows the samples of all, and so needs no message to know the sizes of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from laggard.workloads.datasets.partition import Indices, Partition, Share

_HELD = 3
"""Distinguishes the generators of this module from others of the same seed."""


@dataclass(frozen=True)
class Move:
    """Samples that move between two ranks.

    Attributes:
        source: rank that holds the samples.
        target: rank that will hold them.
        samples: positions of the samples in the training set, shape [n].
    """

    source: int
    target: int
    samples: Indices


@dataclass
class HeldSamplesOrder:
    """Samples of all ranks and steps; steps must be asked for one after another.

    Attributes:
        partition: sizes of the training set and of the batches, and the seed.
    """

    partition: Partition
    _held: list[Indices] = field(init=False)
    _untrained: list[Indices] = field(init=False)
    _next_step: int = 0

    def __post_init__(self) -> None:
        parts = self.partition
        order = np.random.default_rng((parts.seed, _HELD)).permutation(parts.samples)
        self._held = [np.sort(part) for part in np.array_split(order, parts.world_size)]
        self._untrained = [part[:0] for part in self._held]

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of samples that each rank holds."""
        return tuple(len(held) for held in self._held)

    def take_step(self, step: int, rank: int) -> Share:
        """Return a rank's samples in a step.

        Raises:
            ValueError: the step does not follow the one that was asked for before.
        """
        if step != self._next_step:
            raise ValueError(f"step {step}: the samples of step {self._next_step} come next")
        epoch, position = divmod(step, self.partition.steps_per_epoch)
        if position == 0:
            self._begin_epoch(epoch)
        self._next_step += 1
        batch = self.partition.samples_in(step)
        sizes = apportion([len(each) for each in self._untrained], batch)
        own = self._untrained[rank][: sizes[rank]]
        self._untrained = [each[size:] for each, size in zip(self._untrained, sizes, strict=True)]
        return Share(own, batch, self.partition.world_size)

    def _begin_epoch(self, epoch: int) -> None:
        self._untrained = [
            np.random.default_rng((self.partition.seed, epoch, rank, _HELD)).permutation(held)
            for rank, held in enumerate(self._held)
        ]

    def choose(self, source: int, count: int) -> Indices:
        """Return the samples of a rank that move first: those that it would train on last."""
        untrained = self._untrained[source][::-1]
        trained = np.setdiff1d(self._held[source], untrained)
        return np.concatenate([untrained, trained])[:count]

    def move(self, moves: Sequence[Move]) -> None:
        """Let the targets hold the samples; they train on those that were not trained on yet."""
        for each in moves:
            source, target = each.source, each.target
            self._held[source] = np.setdiff1d(self._held[source], each.samples)
            self._held[target] = np.union1d(self._held[target], each.samples)
            is_moved = np.isin(self._untrained[source], each.samples)
            arrived = self._untrained[source][is_moved]
            self._untrained[target] = np.concatenate([self._untrained[target], arrived])
            self._untrained[source] = self._untrained[source][~is_moved]


def apportion(weights: Sequence[int], total: int) -> tuple[int, ...]:
    """Divide a total by whole weights, with the largest remainders first; exact.

    Args:
        weights: weights of 0 or more, of which one is positive unless the total is 0.
        total: number to divide.

    Returns:
        Numbers with that sum. None is greater than its weight if the total is not greater than the
        sum of the weights.
    """
    whole = sum(weights)
    if whole == 0:
        return (0,) * len(weights)
    shares = [weight * total // whole for weight in weights]
    remainders = [weight * total % whole for weight in weights]
    first = sorted(range(len(weights)), key=lambda place: (-remainders[place], place))
    for place in first[: total - sum(shares)]:
        shares[place] += 1
    return tuple(shares)
