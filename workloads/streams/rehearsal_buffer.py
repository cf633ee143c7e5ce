"""Buffer of old samples of one rank, from which later steps rehearse.

A reservoir keeps every sample that it has seen with the same probability (J. Vitter, *Random
sampling with a reservoir*, ACM TOMS 1985). A class-balanced buffer has a reservoir of the same size
for each class that it has seen (A. Chrysakis, M.-F. Moens, *Online continual learning from
imbalanced data*, ICML 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


class RehearsalBuffer(Protocol):
    """Buffer of samples, as indices of the training set."""

    def add(self, samples: Indices, labels: Indices) -> None:
        """See new samples, [n], and keep some of them."""

    def list_samples(self) -> Indices:
        """Return the samples that are kept, in a fixed order."""


@dataclass
class ReservoirBuffer:
    """Buffer in which all samples seen so far are equally likely.

    Attributes:
        size: most samples that it keeps.
        rng: generator of its choices.
        seen: number of samples seen so far.
    """

    size: int
    rng: np.random.Generator
    seen: int = 0
    _kept: list[int] = field(default_factory=list)

    def add(self, samples: Indices, labels: Indices) -> None:
        """See new samples, [n], and keep some of them."""
        del labels
        for sample in samples.tolist():
            self.add_one(sample)

    def list_samples(self) -> Indices:
        """Return the samples that are kept, in a fixed order."""
        return np.array(self._kept, dtype=np.int64)

    def shrink(self, size: int) -> None:
        """Keep fewer samples, which are drawn."""
        self.size = size
        while len(self._kept) > size:
            self._kept.pop(int(self.rng.integers(len(self._kept))))

    def add_one(self, sample: int) -> None:
        """See one new sample, and keep it or not."""
        self.seen += 1
        if len(self._kept) < self.size:
            self._kept.append(sample)
            return
        place = int(self.rng.integers(self.seen))
        if place < self.size:
            self._kept[place] = sample


@dataclass
class BalancedBuffer:
    """Buffer with the same number of places for each class that it has seen.

    Attributes:
        size: most samples that it keeps.
        rng: generator of its choices.
    """

    size: int
    rng: np.random.Generator
    _classes: dict[int, ReservoirBuffer] = field(default_factory=dict)

    def add(self, samples: Indices, labels: Indices) -> None:
        """See new samples, [n], and keep some of them."""
        for sample, label in zip(samples.tolist(), labels.tolist(), strict=True):
            if label not in self._classes:
                self._admit(label)
            self._classes[label].add_one(sample)

    def list_samples(self) -> Indices:
        """Return the samples that are kept, class by class."""
        parts = [each.list_samples() for each in self._classes.values()]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def _admit(self, label: int) -> None:
        """Give a new class its places, which the others give up."""
        places = divide_places(self.size, len(self._classes) + 1)
        for each, size in zip(self._classes.values(), places, strict=False):
            each.shrink(size)
        self._classes[label] = ReservoirBuffer(places[-1], self.rng)


@dataclass
class BufferSize:
    """Number of samples in a buffer, whichever they are.

    Attributes:
        size: most samples that the buffer keeps.
        by_class: whether its places are divided among the classes.
    """

    size: int
    by_class: bool
    _seen: dict[int, int] = field(default_factory=dict)

    def add(self, labels: Indices) -> None:
        """See new samples of these classes, [n]."""
        for label in labels.tolist() if self.by_class else [0] * len(labels):
            self._seen[label] = self._seen.get(label, 0) + 1

    def count(self) -> int:
        """Return the number of samples that the buffer keeps."""
        places = divide_places(self.size, len(self._seen))
        return sum(map(min, places, self._seen.values()))


def divide_places(size: int, classes: int) -> list[int]:
    """Return the places of each class, which no new class increases."""
    return [size // classes + (number < size % classes) for number in range(classes)]


@dataclass(frozen=True)
class HeldSample:
    """Sample that a rank rehearses.

    Attributes:
        sample: index in the training set.
        holder: rank in whose buffer it is.
    """

    sample: int
    holder: int


def draw_from_all(
    buffers: Sequence[Indices], count: int, rng: np.random.Generator
) -> tuple[HeldSample, ...]:
    """Draw samples without replacement, each of all buffers with the same probability.

    Args:
        buffers: samples in the buffer of each rank.
        count: samples to draw; fewer if there are not so many.
        rng: generator that every rank has in the same state.
    """
    ends = np.cumsum([len(each) for each in buffers])
    total = int(ends[-1]) if len(ends) else 0
    drawn = rng.choice(total, min(count, total), replace=False)
    holders = np.searchsorted(ends, drawn, side="right")
    return tuple(
        HeldSample(int(buffers[holder][place - (ends[holder] - len(buffers[holder]))]), int(holder))
        for place, holder in zip(drawn, holders, strict=True)
    )


def draw_samples(samples: Indices, count: int, rng: np.random.Generator) -> Indices:
    """Draw samples without replacement; all of them if there are not so many."""
    return samples[rng.choice(len(samples), min(count, len(samples)), replace=False)]
