"""What the CPU time of a worker is worth, from the work that it says it has done with it.

A host that is held back finds its caches cold when it goes on: its CPU time buys less than at full speed, by a factor of two
where shares are small. Between the ends of two steps its CPU time is charged at what it was worth lately; at the end of each the
difference from what the step's work was worth is entered. So each step takes what it should up to how much one differs from the
next, and many take exactly that.
"""

from __future__ import annotations

from laggard.work import WorkCounter, WorkDone

_LEARN = 0.3
_LEAST, _MOST = 0.2, 2.0


def expected_efficiency(share: float) -> float:
    """What CPU time is worth at a share of a core, before it is known; `dilation.load` plans with it."""
    return 1 / (2 - share)


class Efficiency:
    """Of one worker's CPU time.

    Args:
        counter: of its work.
        share: of its host, now.
    """

    def __init__(self, counter: WorkCounter, share: float) -> None:
        self.value = expected_efficiency(share)
        self._share = share
        self._counter = counter
        self._known = counter.read()
        self._learnt = False

    def settle(self) -> float:
        """Where a step has ended since the last call: the CPU ns at full speed by which what was charged for it fell short."""
        if self._counter.steps == self._known.steps:
            return 0.0
        done = self._counter.read()
        before, self._known = self._known, done
        return self._learn(done, before)

    def change_share(self, share: float) -> None:
        """Expect of the new share what is known of the old; what has not been settled was charged at another, or not at all."""
        self.value *= expected_efficiency(share) / expected_efficiency(self._share)
        self._share = share
        self._known = self._counter.read()

    def _learn(self, done: WorkDone, before: WorkDone) -> float:
        work_ns, cpu_ns = done.full_speed_ns - before.full_speed_ns, done.cpu_ns - before.cpu_ns
        if cpu_ns <= 0:
            return 0.0
        charged_ns = self.value * cpu_ns
        seen = min(max(work_ns / cpu_ns, _LEAST), _MOST)
        self.value += (seen - self.value) * (_LEARN if self._learnt else 1.0)
        self._learnt = True
        return min(max(work_ns - charged_ns, -work_ns), work_ns)

    def close(self) -> None:
        """Let go of the counter."""
        self._counter.close()
