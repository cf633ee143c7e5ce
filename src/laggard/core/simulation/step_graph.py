"""Steps of ranks with fixed dependencies on steps of other ranks, for many what-ifs at once.

A step has a part before its possible wait and a part after it. The dependencies stay the same in
every what-if, so one order of all events serves for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from laggard.core.cost_model.arrays import FloatArray
from laggard.core.errors import RunFolderError


@dataclass(frozen=True)
class StepDependency:
    """Step of another rank that must be reached, and the delay until its message arrives.

    Attributes:
        rank: rank that is waited for.
        step: index of its step.
        ended: if true, the whole step must have ended; otherwise its work before the wait
            suffices.
        lag_s: seconds from that moment until the message is here.
    """

    rank: int
    step: int
    ended: bool
    lag_s: float


@dataclass(frozen=True)
class StepDependencies:
    """Dependencies of one step of a rank; the latest `spare` of them are not waited for."""

    required: tuple[StepDependency, ...]
    spare: int = 0


NO_DEPENDENCIES = StepDependencies(())


@dataclass(frozen=True)
class StepDurations:
    """Durations of every step of every rank, in seconds, for C replays at once, [W][C or 1, N].

    Attributes:
        before: seconds of a step before its possible wait.
        after: seconds of a step after its possible wait.
        earlier_s: seconds by which messages that a step needs arrive earlier than measured; may be
            empty.
    """

    before: tuple[FloatArray, ...]
    after: tuple[FloatArray, ...]
    earlier_s: tuple[FloatArray, ...] = ()

    @property
    def count(self) -> int:
        """Return the number of replays, C."""
        return max(len(each) for each in (*self.before, *self.after))


@dataclass(frozen=True)
class StepGraph:
    """Steps that wait for each other.

    Attributes:
        starts_s: time at which the first step of each rank begins, [W].
        dependencies: dependencies of every step, [W][N].
    """

    starts_s: tuple[float, ...]
    dependencies: tuple[tuple[StepDependencies, ...], ...]

    @cached_property
    def _order(self) -> tuple[tuple[int, int, bool], ...]:
        return sort_events(self.dependencies)

    def end_times(self, durations: StepDurations) -> tuple[FloatArray, ...]:
        """Return the end of every step of every rank, [W][C, N]."""
        count = durations.count
        clock = [np.full(count, start_s) for start_s in self.starts_s]
        ready = [np.empty((len(of_rank), count)) for of_rank in self.dependencies]
        end = [np.empty((len(of_rank), count)) for of_rank in self.dependencies]
        # Each step has two events: ready for the wait, and resumed after it. The order guarantees
        # that the times which an event needs have been computed.
        for rank, step, goes_on in self._order:
            if not goes_on:
                clock[rank] = ready[rank][step] = clock[rank] + durations.before[rank][:, step]
                continue
            earlier_s = durations.earlier_s[rank][:, step] if durations.earlier_s else 0.0
            clock[rank] = (
                _compute_resume_s(clock[rank], self.dependencies[rank][step], ready, end, earlier_s)
                + durations.after[rank][:, step]
            )
            end[rank][step] = clock[rank]
        return tuple(np.ascontiguousarray(each.T) for each in end)


def _compute_resume_s(
    clock: FloatArray,
    dependencies: StepDependencies,
    ready: Sequence[FloatArray],
    end: Sequence[FloatArray],
    earlier_s: FloatArray | float,
) -> FloatArray:
    """Return the times at which a rank resumes that became ready at `clock`, [C]."""
    if not dependencies.required:
        return clock
    come = [
        (end if dependency.ended else ready)[dependency.rank][dependency.step]
        + np.maximum(dependency.lag_s - earlier_s, 0.0)
        for dependency in dependencies.required
    ]
    # The latest `spare` arrivals are not waited for.
    if dependencies.spare:
        come = list(np.sort(np.stack(come), axis=0)[: len(come) - dependencies.spare])
    return np.asarray(np.maximum.reduce([clock, *come]))


def sort_events(
    dependencies: Sequence[Sequence[StepDependencies]],
) -> tuple[tuple[int, int, bool], ...]:
    """Return all events at which ranks become ready or resume, each after those that it needs.

    Args:
        dependencies: dependencies of every step of every rank, [W][N].

    Returns:
        Rank, step, and True if the rank resumes, [2 x all steps]. The order is valid for every
        replay with the same dependencies.

    Raises:
        RunFolderError: steps depend on each other in a cycle, so the spans cannot be right.
    """
    order: list[tuple[int, int, bool]] = []
    ready, finished = [0] * len(dependencies), [0] * len(dependencies)

    def come(dependency: StepDependency) -> bool:
        return dependency.step < (finished if dependency.ended else ready)[dependency.rank]

    # Each pass advances every rank as far as possible; a pass without progress means a cycle.
    while sum(finished) < sum(map(len, dependencies)):
        before = len(order)
        for rank, of_rank in enumerate(dependencies):
            while finished[rank] < len(of_rank):
                step = finished[rank]
                if ready[rank] == step:
                    order.append((rank, step, False))
                    ready[rank] += 1
                if not all(come(dependency) for dependency in of_rank[step].required):
                    break
                order.append((rank, step, True))
                finished[rank] += 1
        if len(order) == before:
            raise RunFolderError(
                "steps of several ranks wait for each other in a cycle, so no training can take"
                " them — check the recorded spans and the clocks of the hosts"
            )
    return tuple(order)
