"""A cause: something slow, somewhere, for some steps, before it is priced."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laggard.analysis.detection.families import FAMILIES, FamilySpec
from laggard.analysis.tables.columns import BoolArray
from laggard.core.run_schema import StragglerFamily, StragglerKind


@dataclass(frozen=True)
class Cause:
    """One slow interval. Steps are indices into the timeline, inclusive.

    Attributes:
        family: name of the family, an entry of `FAMILIES`.
        kind: deterministic (against the fleet, all run long) or dynamic (against its own baseline).
        rank: whose; None for a collective.
        first: first slow step.
        last: last slow step.
        slowdown: median ratio over the interval.
        confidence: probability that the true ratio is at least 1.10.
        baseline: log ratio of the rank's (or collective's) normal to its own reference.
        link: the link that the kernels' counters name, for the network.
        link_busy_s: deterministic links: busy seconds per step.
        link_needed_s: what they would be at the reference rate.
        link_others_busy_s: busy seconds per step of the busiest link that is not slow.
        burdens_transfer: transfers slow down with this rank's compute (a starved host reduces
            slowly).
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

    @property
    def spec(self) -> FamilySpec:
        """Its family."""
        return FAMILIES[self.family]

    def covers(self, steps: int) -> BoolArray:
        """Which of `steps` steps it acts on, [steps]."""
        index = np.arange(steps)
        acts: BoolArray = (index >= self.first) & (index <= self.last)
        return acts

    @property
    def length(self) -> int:
        """Steps from first to last."""
        return self.last - self.first + 1

    def overlap(self, first: int, last: int) -> int:
        """Steps shared with [first, last]."""
        return max(0, min(self.last, last) - max(self.first, first) + 1)
