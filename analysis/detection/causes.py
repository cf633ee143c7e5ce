"""Cause of a slowdown: slow steps of a rank, link or collective, without their cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laggard.analysis.detection.families import FAMILIES, FamilySpec
from laggard.analysis.tables.columns import BoolArray
from laggard.core.run_schema import StragglerFamily, StragglerKind


@dataclass(frozen=True)
class Cause:
    """Slow steps with one cause; steps are indices into the timeline, both ends inclusive.

    Attributes:
        family: name of the family, a key of `FAMILIES`.
        kind: `deterministic` (slower than the fleet throughout the run) or `dynamic` (temporarily
            slower than the rank's own baseline).
        rank: the slow rank; None for a collective or a link.
        first: first slow step.
        last: last slow step.
        slowdown: median ratio of measured to expected duration over the interval.
        confidence: probability that the true ratio is at least 1.10.
        baseline: log ratio of the rank's (or collective's) normal level to its own reference.
        link: (source host, destination host) of the slow link according to the kernels' TCP
            counters; None if unknown.
        link_busy_s: busy seconds per step of a deterministic link.
        link_needed_s: busy seconds per step that this link would need at the reference rate.
        link_others_busy_s: busy seconds per step of the busiest link that is not slow.
        burdens_transfer: first and last step of the slow transfers that this rank's slow compute
            causes (a starved host reduces slowly); None if there are none.
        steps: the slow steps, if they are fewer than all from first to last.
        is_short: whether the steps are too few for an interval, so that the cause counts only if
            it costs 1 % of the makespan.
    """

    family: StragglerFamily
    kind: StragglerKind
    rank: int | None
    first: int
    last: int
    slowdown: float
    confidence: float
    baseline: float = 0.0
    link: tuple[str, str] | None = None
    link_busy_s: float = 0.0
    link_needed_s: float = 0.0
    link_others_busy_s: float = 0.0
    burdens_transfer: tuple[int, int] | None = None
    steps: tuple[int, ...] = ()
    is_short: bool = False

    @property
    def spec(self) -> FamilySpec:
        """Return the specification of the cause's family."""
        return FAMILIES[self.family]

    def covers(self, steps: int) -> BoolArray:
        """Return a mask of the steps that the cause acts on, [steps]."""
        index = np.arange(steps)
        if self.steps:
            chosen: BoolArray = np.isin(index, self.steps)
            return chosen
        acts: BoolArray = (index >= self.first) & (index <= self.last)
        return acts

    @property
    def length(self) -> int:
        """Return the number of steps from first to last, both included."""
        return self.last - self.first + 1

    def overlap(self, first: int, last: int) -> int:
        """Return the number of steps that the cause shares with [first, last]."""
        return max(0, min(self.last, last) - max(self.first, first) + 1)
