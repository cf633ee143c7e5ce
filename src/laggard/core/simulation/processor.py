"""Share of a core that a server and a worker on one host divide evenly while both compute."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from laggard.core.simulation.event_loop import Action, EventLoop
from laggard.core.simulation.recorded_durations import RecordedDurations

# Remaining seconds that count as none; it absorbs rounding errors of times.
_MIN_S = 1e-12


@dataclass
class _ComputeJob:
    """Compute job in progress."""

    left_s: float
    on_done: Action


class Processor:
    """Processor of one host, shared evenly by its jobs.

    Args:
        loop: event loop with the simulated time.
        speed: source of the host's slow periods.
    """

    def __init__(self, loop: EventLoop, speed: RecordedDurations) -> None:
        self._loop, self._speed = loop, speed
        self._jobs: list[_ComputeJob] = []
        self._since_s, self._turn = 0.0, 0

    def submit(self, seconds: float, on_done: Action) -> None:
        """Start a job and call `on_done` when it is done.

        `seconds` is its duration if it runs alone and outside slow periods.
        """
        self._advance()
        self._jobs.append(_ComputeJob(seconds, on_done))
        self._plan()

    def _advance(self) -> None:
        done_s = self._speed.compute_work_s(self._since_s, self._loop.now_s) / max(
            len(self._jobs), 1
        )
        for job in self._jobs:
            job.left_s -= done_s
        self._since_s = self._loop.now_s

    def _plan(self) -> None:
        self._turn += 1
        if self._jobs:
            least_s = max(min(job.left_s for job in self._jobs), 0.0)
            due_s = self._speed.compute_end_s(self._loop.now_s, least_s * len(self._jobs))
            self._loop.schedule(due_s, partial(self._finish, self._turn))

    def _finish(self, turn: int) -> None:
        # Jobs were added since this event was scheduled; a newer event replaces it.
        if turn != self._turn:
            return
        self._advance()
        least_s = min(job.left_s for job in self._jobs)
        done = [job for job in self._jobs if job.left_s <= least_s + _MIN_S]
        self._jobs = [job for job in self._jobs if job.left_s > least_s + _MIN_S]
        for job in done:
            job.on_done()
        self._plan()
