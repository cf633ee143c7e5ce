"""Classes of equal workers, and the durations of their steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laggard.core.cost_model.arrays import FloatArray
from laggard.core.cost_model.demand import require_quantity
from laggard.core.errors import InputError

MAX_CROWD = 100_000_000
"""Largest number of workers, whose clocks take eight bytes each."""


def require_steps(steps: int) -> None:
    """Raise an error unless there is a step.

    Raises:
        InputError: there is none.
    """
    if steps < 1:
        raise InputError(f"steps is {steps} and must be at least 1")


@dataclass(frozen=True)
class CrowdClass:
    """Equal workers, each with links of its own.

    Attributes:
        name: name of the class.
        workers: number of workers.
        step_s: usual seconds of a step: the median, if steps differ.
        spread: standard deviation of the logarithm of a step's duration.
        packing_s: seconds that a worker spends on sending, or on receiving, a message.
        up_s: seconds of a message from a worker to the server, or to its neighbor.
        down_s: seconds of a message from the server to a worker.
        edges_s: times at which the class becomes slower or faster, ascending, [M].
        factors: slowness before, between and after these times, [M + 1].

    Raises:
        InputError: a number is impossible.
    """

    name: str
    workers: int
    step_s: float
    spread: float = 0.0
    packing_s: float = 0.0
    up_s: float = 0.0
    down_s: float = 0.0
    edges_s: tuple[float, ...] = ()
    factors: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if not 1 <= self.workers <= MAX_CROWD:
            raise InputError(
                f"{self.name}: {self.workers} workers, which must be 1 to {MAX_CROWD:,}"
            )
        require_quantity("step_s", self.step_s, "give the seconds of a step", positive=True)
        for name in ("spread", "packing_s", "up_s", "down_s"):
            require_quantity(name, getattr(self, name), "give 0 for none")
        if len(self.factors) != len(self.edges_s) + 1 or min(self.factors) <= 0:
            raise InputError(
                f"{self.name}: {len(self.factors)} factors of slowness between"
                f" {len(self.edges_s)} times — give one more factor than times, all positive"
            )


@dataclass(frozen=True)
class Crowd:
    """Workers of all classes, in the order of their ranks.

    Attributes:
        classes: the classes; the workers of a class have ranks one after another.

    Raises:
        InputError: there is no class, or there are too many workers.
    """

    classes: tuple[CrowdClass, ...]

    def __post_init__(self) -> None:
        if not self.classes or self.workers > MAX_CROWD:
            raise InputError(f"{self.workers} workers, which must be 1 to {MAX_CROWD:,}")

    @property
    def workers(self) -> int:
        """Return the number of workers."""
        return sum(each.workers for each in self.classes)

    def spread_out(self, values: Sequence[float]) -> FloatArray:
        """Return a value of every class for each of its workers, [workers]."""
        counts = [each.workers for each in self.classes]
        return np.repeat(np.asarray(values, dtype=np.float64), counts)

    def slices(self) -> tuple[slice, ...]:
        """Return the ranks of every class."""
        ends = np.cumsum([each.workers for each in self.classes]).tolist()
        return tuple(slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False))


class CrowdSteps:
    """Steps of all workers of a crowd.

    Args:
        crowd: the workers.
        rng: source of the durations.

    Attributes:
        computed_s: seconds that the workers of each class have computed together, [classes].
    """

    def __init__(self, crowd: Crowd, rng: np.random.Generator) -> None:
        self.computed_s = np.zeros(len(crowd.classes))
        self._crowd, self._rng = crowd, rng

    def finish_s(self, begins_s: FloatArray) -> FloatArray:
        """Return the ends of a step of every worker, without messages, [workers].

        Args:
            begins_s: times at which the workers begin, [workers].
        """
        ends_s = np.empty_like(begins_s)
        for place, (each, ranks) in enumerate(
            zip(self._crowd.classes, self._crowd.slices(), strict=True)
        ):
            begins = begins_s[ranks]
            ends_s[ranks] = self._end_steps(each, begins)
            self.computed_s[place] += float((ends_s[ranks] - begins).sum())
        return ends_s

    def _end_steps(self, workers: CrowdClass, begins_s: FloatArray) -> FloatArray:
        durations: FloatArray | float = workers.step_s
        if workers.spread:
            drawn = self._rng.standard_normal(len(begins_s))
            durations = workers.step_s * np.exp(workers.spread * drawn)
        if not workers.edges_s:
            return np.asarray(begins_s + durations * workers.factors[0])
        return stretch(begins_s, durations, workers.edges_s, workers.factors)


def stretch(
    begins_s: FloatArray,
    durations_s: FloatArray | float,
    edges_s: Sequence[float],
    factors: Sequence[float],
) -> FloatArray:
    """Return the ends of operations that slow times lengthen, in the shape of their begins.

    The work that is possible until a time is a line with bends; an operation ends where its work
    is done.

    Args:
        begins_s: times at which the operations begin, not before 0.
        durations_s: seconds of each operation outside slow times.
        edges_s: times at which the slowness changes, ascending and positive.
        factors: slowness before, between and after these times.

    Examples:
        >>> import numpy as np
        >>> stretch(np.array([0.0]), 2.0, edges_s=[1.0], factors=[1.0, 4.0])
        array([5.])
    """
    moments = np.array([0.0, *edges_s])
    work = np.concatenate([[0.0], np.cumsum(np.diff(moments) / np.array(factors[:-1]))])
    done = np.interp(begins_s, moments, work) + np.maximum(begins_s - moments[-1], 0) / factors[-1]
    wanted = done + durations_s
    beyond = np.maximum(wanted - work[-1], 0) * factors[-1]
    return np.asarray(np.interp(wanted, work, moments) + beyond)


@dataclass(frozen=True)
class CrowdResult:
    """Result of a simulation.

    Attributes:
        makespan_s: seconds until the training ends.
        steps: steps that all workers together have taken.
        computed_share: part of the makespan in which a worker of each class computed, [classes].
        relative_error: estimated error of the makespan, if only a part of the workers was played.
    """

    makespan_s: float
    steps: int
    computed_share: FloatArray
    relative_error: float = 0.0
