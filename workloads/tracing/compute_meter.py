"""Meter of a rank's computing time, compared with its time at full speed.

The limiter of the host's share reads both, since a share is a fraction of full speed.
"""

from __future__ import annotations

import time

from laggard.core.work_counter import WorkCounter
from laggard.workloads.tracing.full_speed import FullSpeed


class ComputeMeter:
    """Meter of the training thread's CPU time while it computes.

    Args:
        counter: counter of the rank's steps and their CPU time.
        full_speed: CPU time of steps at full speed.

    Attributes:
        full_speed: CPU time of steps at full speed.
    """

    def __init__(self, counter: WorkCounter, full_speed: FullSpeed) -> None:
        self._counter = counter
        self.full_speed = full_speed
        self._cpu_ns = 0
        self._began_ns = 0

    def begin(self) -> None:
        """Begin a phase that computes."""
        self._counter.set_computing(True)
        self._began_ns = time.thread_time_ns()

    def end(self) -> None:
        """End a phase that computes."""
        self._cpu_ns += time.thread_time_ns() - self._began_ns
        self._counter.set_computing(False)

    def rest(self) -> None:
        """Mark the rank as not computing, although its counter was created with the opposite."""
        self._counter.set_computing(False)

    def finish(self, samples: int) -> None:
        """Count a finished step of `samples` samples."""
        self._counter.add(self.full_speed.step_ns(samples), self._cpu_ns)
        self._cpu_ns = 0
