"""Efficiency of a worker's CPU time: the work done with it, relative to full speed.

A held-back host finds cold caches when it resumes, so its CPU time does less work than at full
speed: half as much for small shares. Between the ends of two steps, CPU time is charged at the
efficiency learned from recent steps. At the end of a step its real work is known; the difference
is charged over the next few steps. So a single step is exact up to its deviation from the usual
step, and the sum over many steps is exact.

No host gets more CPU time than its core has for it. If steps are so short that caches hardly warm
up, the host is slower than its share says.
"""

from __future__ import annotations

from laggard.core.cost_model.limited_core import expected_efficiency
from laggard.core.work_counter import WorkCounter, WorkDone

WARM_UP_STEPS = 2
"""First steps of a training that are ignored: one-time work makes their efficiency meaningless."""

_LEARN = 0.3
"""Weight of the newest step in the moving average of the efficiency."""
_MAKE_UP = 0.25
"""Part of the outstanding work that is charged at the end of a step. Charging all of it at once
would make one step pay fully for an unusual one before it."""

_MOST = 2.0
"""Largest efficiency that a single step can contribute to the average."""


def least_efficiency(share: float, fullness: float) -> float:
    """Return the lower bound of the efficiency.

    It keeps hosts from needing more than their core has.

    Args:
        share: share of the host.
        fullness: planned load of all hosts on its core, divided by the core's capacity.
    """
    return min(fullness, 1.0) * expected_efficiency(share)


def compute_excess_slowdown(done: WorkDone, least: float) -> float:
    """Return the factor by which a worker's steps took longer than its share asks for.

    It is 1 or more; more than 1 if `least_efficiency` left the worker short.
    """
    return max(1.0, least * done.cpu_ns / done.full_speed_ns) if done.full_speed_ns else 1.0


class Efficiency:
    """Efficiency of one worker's CPU time.

    Args:
        counter: counter of the worker's work.
        share: current share of its host.
        fullness: planned load of its core (see `least_efficiency`).

    Attributes:
        value: CPU time at full speed that does the same work as one unit of CPU time now.
        outstanding_ns: work of all steps so far that has not been charged yet; negative if too
            much was charged.
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
        """Return the work of CPU time just used, in CPU ns at full speed.

        The result is 0 while no step is computing.
        """
        if not self._counter.is_computing:
            return 0.0
        worth_ns = cpu_ns * self.value
        self._charged_ns += worth_ns
        return worth_ns

    def charge_uncounted(self) -> float:
        """Return the correction to charge now, in CPU ns at full speed.

        It is 0 unless a step has ended since the last call.
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
        # A step during which the share changed was charged at two rates, so it is not settled.
        # Otherwise the error of one step is bounded by the work of that step.
        if charged_whole:
            self.outstanding_ns += min(max(work_ns - charged_ns, -work_ns), work_ns)
        entered_ns = self.outstanding_ns * _MAKE_UP
        self.outstanding_ns -= entered_ns
        return entered_ns

    def change_share(self, share: float) -> None:
        """Scale the learned efficiency to a new share; the current step is not settled."""
        self.value *= expected_efficiency(share) / expected_efficiency(self._share)
        self._share = share
        self._known = self._counter.read()
        self.outstanding_ns = 0.0
        self._charged_whole = False

    def _learn(self, seen: float) -> None:
        self.value += (min(seen, _MOST) - self.value) * (_LEARN if self._learnt else 1.0)
        self._learnt = True

    def close(self) -> None:
        """Close the counter."""
        self._counter.close()
