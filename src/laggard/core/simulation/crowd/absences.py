"""Times at which the workers of a class are absent: written ones, or drawn lives of machines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from laggard.core.cost_model.arrays import FloatArray
from laggard.core.errors import InputError
from laggard.core.revocation.lifetimes import Lifetimes

BoolArray = npt.NDArray[np.bool_]


class Absences(Protocol):
    """Source of the absences of equal workers."""

    def find_next(
        self, after_s: FloatArray, rng: np.random.Generator
    ) -> tuple[FloatArray, FloatArray]:
        """Return when workers leave and join again, [N] each.

        Args:
            after_s: times at which the workers have joined, or 0 at the beginning, [N].
            rng: source of drawn absences.

        Returns:
            The first absence of each that ends later; infinite times if there is none.
        """


@dataclass(frozen=True)
class WrittenAbsences:
    """Absences that all workers of a class have at the same times.

    Attributes:
        times_s: when the workers leave and when they join again, in order; the last end may be
            infinite.
    """

    times_s: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        flat = [time_s for absence in self.times_s for time_s in absence]
        if any(later <= earlier for earlier, later in pairwise(flat)):
            raise InputError(
                f"absences {self.times_s}: must follow each other — give each as the seconds of its"
                " begin and of its end"
            )

    def find_next(
        self,
        after_s: FloatArray,
        rng: np.random.Generator,  # noqa: ARG002
    ) -> tuple[FloatArray, FloatArray]:
        """Return the first absence that ends later (see `Absences`)."""
        leaves_s, joins_s = np.array([*self.times_s, (math.inf, math.inf)]).T
        # The last one is none, and ends no absence.
        place = np.searchsorted(joins_s[:-1], after_s, side="right")
        return leaves_s[place], joins_s[place]


@dataclass(frozen=True)
class DrawnAbsences:
    """Revocations of machines, each of which lives on its own.

    Attributes:
        lives: observed lives.
        back_after_s: seconds until a new machine joins; None if none does.
        faster: number of times that lives are shorter than the observed ones.
    """

    lives: Lifetimes
    back_after_s: float | None = None
    faster: float = 1.0

    def find_next(
        self, after_s: FloatArray, rng: np.random.Generator
    ) -> tuple[FloatArray, FloatArray]:
        """Return the end of a life that begins now, and the next one's begin (see `Absences`)."""
        drawn = self.lives.draw_lives(rng.random(len(after_s)))
        leaves_s = after_s + drawn / self.faster
        back_s = math.inf if self.back_after_s is None else self.back_after_s
        return leaves_s, leaves_s + back_s


class Attendance:
    """Workers that are present or absent; their times only advance.

    Args:
        absences: source of the absences of each class; None for workers that are never absent.
        ranks: workers of each class.
        rng: source of drawn absences.

    Attributes:
        leaves_s: time at which each worker leaves next, [workers].
        joins_s: time at which it joins after that, [workers].
    """

    def __init__(
        self,
        absences: Sequence[Absences | None],
        ranks: Sequence[slice],
        rng: np.random.Generator,
    ) -> None:
        self._classes = [
            (source, own) for source, own in zip(absences, ranks, strict=True) if source is not None
        ]
        self._rng = rng
        workers = max((own.stop for own in ranks), default=0)
        self.leaves_s, self.joins_s = np.full(workers, math.inf), np.full(workers, math.inf)
        self._joined_s = np.zeros(workers)
        for source, own in self._classes:
            begins = np.zeros(own.stop - own.start)
            self.leaves_s[own], self.joins_s[own] = source.find_next(begins, rng)

    @property
    def is_full(self) -> bool:
        """Return whether nobody is ever absent."""
        return not self._classes

    def follow(self, ready_s: FloatArray, who: BoolArray | None = None) -> FloatArray:
        """Return the first times from these on at which the workers are present, [workers].

        Args:
            ready_s: times, not before those of an earlier call, [workers].
            who: workers that are followed, [workers]; None for all. Others keep their times.
        """
        followed: BoolArray = np.ones(len(ready_s), dtype=np.bool_) if who is None else who
        while True:
            times_s = np.where(followed, np.maximum(ready_s, self._joined_s), ready_s)
            past = followed & (times_s >= self.leaves_s) & (self.leaves_s < math.inf)
            if not past.any():
                return times_s
            self._joined_s[past] = self.joins_s[past]
            self._pass_absences(past)

    def _pass_absences(self, past: BoolArray) -> None:
        """Find the next absences of workers whose last one is over or never ends."""
        for source, own in self._classes:
            mine = past[own]
            joined_s = self.joins_s[own][mine]
            back = np.isfinite(joined_s)
            leaves_s, joins_s = np.full(len(joined_s), math.inf), np.full(len(joined_s), math.inf)
            if back.any():
                leaves_s[back], joins_s[back] = source.find_next(joined_s[back], self._rng)
            self.leaves_s[own][mine], self.joins_s[own][mine] = leaves_s, joins_s
