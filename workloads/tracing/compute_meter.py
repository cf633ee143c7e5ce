"""Counts what a rank's computing took, and what it would have taken at full speed, for whoever
holds it to a share of that speed.
"""

from __future__ import annotations

import time

from laggard.core.work_counter import WorkCounter
from laggard.workloads.tracing.full_speed import FullSpeed


class ComputeMeter:
    """The CPU time of the thread that trains, while it computes.

    Args:
        counter: where steps are counted.
        full_speed: what they would take.

    Attributes:
        full_speed: as told.
    """

    def __init__(self, counter: WorkCounter, full_speed: FullSpeed) -> None:
        self._counter = counter
        self.full_speed = full_speed
        self._cpu_ns = 0
        self._began_ns = 0

    def begin(self) -> None:
        """A phase of computing begins."""
        self._counter.set_computing(True)
        self._began_ns = time.thread_time_ns()

    def end(self) -> None:
        """It is over."""
        self._cpu_ns += time.thread_time_ns() - self._began_ns
        self._counter.set_computing(False)

    def rest(self) -> None:
        """This rank is not computing, whatever its counter said before it could."""
        self._counter.set_computing(False)

    def finish(self, samples: int) -> None:
        """The computing of a step of so many samples is done."""
        self._counter.add(self.full_speed.step_ns(samples), self._cpu_ns)
        self._cpu_ns = 0
