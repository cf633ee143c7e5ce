"""Classes of equal workers, and the durations of their steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from laggard.core.cost_model.arrays import FloatArray
from laggard.core.cost_model.demand import require_quantity
from laggard.core.errors import InputError
from laggard.core.simulation.crowd.absences import Absences

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
class Slowness:
    """Slowness of something that changes at some times.

    Attributes:
        edges_s: times at which it becomes slower or faster, ascending, [M].
        factors: slowness before, between and after these times, [M + 1].

    Raises:
        InputError: a number is impossible.

    Examples:
        >>> import numpy as np
        >>> Slowness((1.0,), (1.0, 4.0)).stretch(np.array([0.0]), 2.0)
        array([5.])
    """

    edges_s: tuple[float, ...] = ()
    factors: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if len(self.factors) != len(self.edges_s) + 1 or min(self.factors) <= 0:
            raise InputError(
                f"{len(self.factors)} factors of slowness between {len(self.edges_s)} times — give"
                " one more factor than times, all positive"
            )

    def stretch(self, begins_s: FloatArray, durations_s: FloatArray | float) -> FloatArray:
        """Return the ends of operations that slow times lengthen, in the shape of their begins.

        The work that is possible until a time is a line with bends; an operation ends where its
        work is done.

        Args:
            begins_s: times at which the operations begin, not before 0.
            durations_s: seconds of each operation outside slow times.
        """
        if not self.edges_s:
            return np.asarray(begins_s + np.asarray(durations_s) * self.factors[0])
        moments = np.array([0.0, *self.edges_s])
        work = np.concatenate([[0.0], np.cumsum(np.diff(moments) / np.array(self.factors[:-1]))])
        later_s = np.maximum(begins_s - moments[-1], 0)
        wanted = np.interp(begins_s, moments, work) + later_s / self.factors[-1] + durations_s
        beyond_s = np.maximum(wanted - work[-1], 0) * self.factors[-1]
        return np.asarray(np.interp(wanted, work, moments) + beyond_s)

    def end_s(self, begin_s: float, duration_s: float) -> float:
        """Return the end of one operation."""
        if not self.edges_s:
            return begin_s + duration_s * self.factors[0]
        return float(self.stretch(np.array([begin_s]), duration_s)[0])


CONSTANT = Slowness()


@dataclass(frozen=True)
class CrowdClass:
    """Equal workers, each with links of its own.

    Attributes:
        name: name of the class.
        workers: number of workers.
        step_s: usual seconds of a step: the median, if steps differ.
        spread: standard deviation of the logarithm of a step's duration.
        packing_s: seconds that a worker spends on sending, or on receiving, a message.
        up_s: seconds of a message from a worker to the server, without the delay.
        down_s: seconds of a message from the server to a worker, without the delay.
        delay_s: seconds that the last byte of a message travels.
        slowness: slowness of the steps.
        up_slowness: slowness of messages to the server.
        down_slowness: slowness of messages from the server.
        absences: times at which the workers are absent; None if they never are.

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
    delay_s: float = 0.0
    slowness: Slowness = CONSTANT
    up_slowness: Slowness = CONSTANT
    down_slowness: Slowness = CONSTANT
    absences: Absences | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.workers <= MAX_CROWD:
            raise InputError(
                f"{self.name}: {self.workers} workers, which must be 1 to {MAX_CROWD:,}"
            )
        require_quantity("step_s", self.step_s, "give the seconds of a step", positive=True)
        for name in ("spread", "packing_s", "up_s", "down_s", "delay_s"):
            require_quantity(name, getattr(self, name), "give 0 for none")

    def receive_s(self, sent_s: FloatArray) -> FloatArray:
        """Return when workers have a message that has passed the link that all share."""
        came_s = self.down_slowness.stretch(sent_s, self.down_s) + self.delay_s
        return self.slowness.stretch(came_s, self.packing_s)

    def send_s(self, computed_s: FloatArray) -> FloatArray:
        """Return when messages of workers come to the link that all share."""
        packed_s = self.slowness.stretch(computed_s, self.packing_s)
        return self.up_slowness.stretch(packed_s, self.up_s) + self.delay_s


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

    def map_classes(
        self, function: Callable[[CrowdClass, FloatArray], FloatArray], values: FloatArray
    ) -> FloatArray:
        """Return a function of every class and of the values of its workers, [workers]."""
        found = np.empty_like(values)
        for each, ranks in zip(self.classes, self.slices(), strict=True):
            found[ranks] = function(each, values[ranks])
        return found

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
            begins_s: times at which the workers begin; infinite for one that takes no step,
                [workers].
        """
        ends_s = np.empty_like(begins_s)
        for place, (each, ranks) in enumerate(
            zip(self._crowd.classes, self._crowd.slices(), strict=True)
        ):
            begins = begins_s[ranks]
            durations: FloatArray | float = each.step_s
            if each.spread:
                drawn = self._rng.standard_normal(len(begins))
                durations = each.step_s * np.exp(each.spread * drawn)
            ends_s[ranks] = each.slowness.stretch(begins, durations)
            taking = np.isfinite(begins)
            self.computed_s[place] += float((ends_s[ranks][taking] - begins[taking]).sum())
        return ends_s


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
