"""What happens when: actions in the order of their times."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Action = Callable[[], None]


class EventLoop:
    """Does what is due, one after the other; of what is due at once, first what was asked for
    first.

    Attributes:
        now_s: the time.
        is_stopped: whether to do nothing more.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.is_stopped = False
        self._due: list[tuple[float, int, Action]] = []
        self._sequence = 0

    def schedule(self, when_s: float, action: Action) -> None:
        """Have something done then."""
        heapq.heappush(self._due, (when_s, self._sequence, action))
        self._sequence += 1

    def run(self) -> None:
        """Go on until nothing is left to do, or it is over."""
        while self._due and not self.is_stopped:
            self.now_s, _, action = heapq.heappop(self._due)
            action()
