"""A host's share of a core, which a server and a worker there have between them: who computes at
the same time has an even part of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from laggard.analysis.other_strategy.loop import Action, Loop
from laggard.analysis.other_strategy.repeated import Repeated

_LEAST_S = 1e-12


@dataclass
class _Job:
    left_s: float
    then: Action


class Processor:
    """What is to be computed on one host.

    Args:
        loop: the time.
        tempo: when it is slow.
    """

    def __init__(self, loop: Loop, tempo: Repeated) -> None:
        self._loop, self._tempo = loop, tempo
        self._jobs: list[_Job] = []
        self._since_s, self._turn = 0.0, 0

    def do(self, seconds: float, then: Action) -> None:
        """Begin something that takes so long alone, where no time is slow; when it is done,
        something else is to be.
        """
        self._advance()
        self._jobs.append(_Job(seconds, then))
        self._plan()

    def _advance(self) -> None:
        done_s = self._tempo.worked(self._since_s, self._loop.now_s) / max(len(self._jobs), 1)
        for job in self._jobs:
            job.left_s -= done_s
        self._since_s = self._loop.now_s

    def _plan(self) -> None:
        self._turn += 1
        if self._jobs:
            least_s = max(min(job.left_s for job in self._jobs), 0.0)
            due_s = self._tempo.after(self._loop.now_s, least_s * len(self._jobs))
            self._loop.at(due_s, partial(self._finish, self._turn))

    def _finish(self, turn: int) -> None:
        if turn != self._turn:  # others have come meanwhile
            return
        self._advance()
        least_s = min(job.left_s for job in self._jobs)
        done = [job for job in self._jobs if job.left_s <= least_s + _LEAST_S]
        self._jobs = [job for job in self._jobs if job.left_s > least_s + _LEAST_S]
        for job in done:
            job.then()
        self._plan()
