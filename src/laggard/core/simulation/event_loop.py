"""Simulated time: actions that run in the order of their times."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Action = Callable[[], None]


class EventLoop:
    """Event loop that runs actions when they are due; ties run in the order of scheduling.

    Attributes:
        now_s: simulated time in seconds.
        is_stopped: set to true by an action to end the loop.
        actions: number of actions that have run.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.is_stopped = False
        self.actions = 0
        self._due: list[tuple[float, int, Action]] = []
        self._sequence = 0

    def schedule(self, when_s: float, action: Action) -> None:
        """Schedule an action at a simulated time."""
        heapq.heappush(self._due, (when_s, self._sequence, action))
        self._sequence += 1

    def run(self) -> None:
        """Run actions until none is left or the loop is stopped."""
        while self._due and not self.is_stopped:
            self.now_s, _, action = heapq.heappop(self._due)
            self.actions += 1
            action()
