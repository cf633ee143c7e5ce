"""What the CPU time of a worker is worth, from the work that it says it has done with it.

A host that is held back finds its caches cold when it goes on: its CPU time buys less than at full
speed, by a factor of two where shares are small. Between the ends of two steps its CPU time is
charged at what it was worth lately; the difference from what each step's work was worth is entered
over the next few. So each step takes what it should up to how much one differs from the usual, and
many take exactly that.

No host gets more CPU time than its core has for it: where steps are so short that hardly anything
of them is warm, a host is slower than its share says.
"""

from __future__ import annotations

from laggard.core.work_counter import WorkCounter, WorkDone

WARM_UP_STEPS = 2
"""The first steps of a training, in which much is done for the first time, say nothing of what CPU
time is worth."""

_LEARN = 0.3
_MAKE_UP = 0.25
"""Part of what is outstanding that is entered at the end of a step: all of it at once would have
the next step pay for each that was odd."""

_MOST = 2.0


def least_efficiency(share: float, fullness: float) -> float:
    """What CPU time is taken to be worth at least, so that hosts do not need more of a core than
    there is.

    Args:
        share: of the host.
        fullness: what all hosts of its core are planned to need of what it can give.
    """
    return min(fullness, 1.0) * expected_efficiency(share)


def compute_excess_slowdown(done: WorkDone, least: float) -> float:
    """How many times as long a worker's steps took as its share asks for: more than 1 where
    `least_efficiency` left it short.
    """
    return max(1.0, least * done.cpu_ns / done.full_speed_ns) if done.full_speed_ns else 1.0


def expected_efficiency(share: float) -> float:
    """What CPU time is worth at a share of a core, before it is known.

    `dilation.compute_load` plans with it.
    """
    return 1 / (2 - share)


class Efficiency:
    """Of one worker's CPU time.

    Args:
        counter: of its work.
        share: of its host, now.
        fullness: of its core (`least_efficiency`).

    Attributes:
        value: CPU time at full speed that a unit of it is worth.
        outstanding_ns: by how much the work of all steps so far was more than what was charged.
    """

    def __init__(self, counter: WorkCounter, share: float, fullness: float = 0.0) -> None:
        self.value = expected_efficiency(share)
        self.outstanding_ns = 0.0
        self._share, self._fullness = share, fullness
        self._counter = counter
        self._known = counter.read()
        self._charged_ns = 0.0
        self._charged_whole = True
        self._learnt = False

    def charge(self, cpu_ns: int) -> float:
        """What CPU time just used is worth, in CPU ns at full speed; nothing while the worker does
        not compute.
        """
        if not self._counter.is_computing:
            return 0.0
        worth_ns = cpu_ns * self.value
        self._charged_ns += worth_ns
        return worth_ns

    def charge_uncounted(self) -> float:
        """Where a step has ended since the last call: the CPU ns at full speed to charge for what
        was charged too little so far.
        """
        if self._counter.steps == self._known.steps:
            return 0.0
        done = self._counter.read()
        before, self._known = self._known, done
        charged_ns, self._charged_ns = self._charged_ns, 0.0
        charged_whole, self._charged_whole = self._charged_whole, True
        if before.steps < WARM_UP_STEPS:
            return 0.0
        work_ns, cpu_ns = (
            float(done.full_speed_ns - before.full_speed_ns),
            done.cpu_ns - before.cpu_ns,
        )
        work_ns = max(work_ns, least_efficiency(self._share, self._fullness) * cpu_ns)
        if cpu_ns > 0:
            self._learn(work_ns / cpu_ns)
        if charged_whole:
            self.outstanding_ns += min(max(work_ns - charged_ns, -work_ns), work_ns)
        entered_ns = self.outstanding_ns * _MAKE_UP
        self.outstanding_ns -= entered_ns
        return entered_ns

    def change_share(self, share: float) -> None:
        """Expect of the new share what is known of the old; the step that is under way is not
        settled.
        """
        self.value *= expected_efficiency(share) / expected_efficiency(self._share)
        self._share = share
        self._known = self._counter.read()
        self.outstanding_ns = 0.0
        self._charged_whole = False

    def _learn(self, seen: float) -> None:
        self.value += (min(seen, _MOST) - self.value) * (_LEARN if self._learnt else 1.0)
        self._learnt = True

    def close(self) -> None:
        """Let go of the counter."""
        self._counter.close()
