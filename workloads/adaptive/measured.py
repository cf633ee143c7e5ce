"""What ranks tell each other of their last steps, and what it says of the continuum; pure.

Of a collective every rank knows how long it was in it. The one that came last was in it for as long as the transfer took, so over the ranks the shortest
time is the transfer, step by step; a rank that is slow for a while does not make links slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from laggard.workloads.adaptive.scheme import PERIODS, Costs

Table = npt.NDArray[np.float64]
KEPT = 32
"""Steps of each kind that are told of."""

ALIKE = 1.15
"""Shares of a batch closer to each other than this are alike: steps of one tell what those of the other take."""

LATEST = 3
"""Collectives of a kind that its cost is judged by: links change."""

KINDS = 4
WORK, FLAT, TIER, WIDE = range(KINDS)


@dataclass
class Diary:
    """One rank's last steps: seconds of its own work, and seconds in each kind of collective."""

    def __post_init__(self) -> None:
        self._entries: list[list[float]] = [[] for _ in range(KINDS)]
        self._size = 0

    def note(self, kind: int, seconds: float) -> None:
        """One more of a kind."""
        self._entries[kind] = [*self._entries[kind], seconds][-KEPT:]

    def work(self, seconds: float, size: int) -> None:
        """This rank's own work of one more step, with so many samples; what it was with others says nothing of what it is now."""
        if max(size, self._size) > ALIKE * min(size, self._size):
            self._entries[WORK] = []
        self._size = size
        self.note(WORK, seconds)

    def table(self) -> Table:
        """Shape [KINDS, KEPT], the latest last; NaN where there were fewer."""
        rows = [[float("nan")] * (KEPT - len(entries)) + entries for entries in self._entries]
        return np.array(rows, dtype=np.float64)


def costs_of(tables: Table, tiers: Sequence[str], model_bytes: int) -> Costs:
    """What all ranks' diaries say together.

    Args:
        tables: of every rank, shape [ranks, KINDS, KEPT]; a kind's entries are of the same steps on all ranks.
        tiers: the tier of every rank.
        model_bytes: of what is averaged.
    """
    ring, wide = crossings(tiers), len(set(tiers))
    ranks = len(tiers)
    return Costs(
        work_s=_slowest_work(tables[:, WORK]),
        flat_s=_transfer_s(tables[:, FLAT]) or 0.0,
        tier_s=_tier_s(tables[:, TIER], tiers),
        wide_s=_transfer_s(tables[:, WIDE]),
        flat_bytes=ring * 2 * (ranks - 1) / ranks * model_bytes,
        wide_bytes=(wide if wide > 1 else 0) * 2 * (wide - 1) / wide * model_bytes,
    )


def crossings(tiers: Sequence[str]) -> int:
    """Links of a ring of the ranks, in their order, that lead from one tier to another."""
    return sum(tier != tiers[place - 1] for place, tier in enumerate(tiers)) if len(tiers) > 1 else 0


def _slowest_work(work: Table) -> dict[int, float]:
    """Of the slowest rank over 1, 2, 4, ... steps: what a step of it takes, in the mean over all such stretches; shape [ranks, KEPT]."""
    told = work[:, ~np.isnan(work).any(axis=0)]
    found = {1: 0.0}
    for period in (1, *PERIODS):
        if period <= told.shape[1]:
            stretches = np.lib.stride_tricks.sliding_window_view(told, period, axis=1).mean(axis=2)
            found[period] = float(stretches.max(axis=0).mean())
    return found


def _transfer_s(seconds: Table) -> float | None:
    """Of the middle collective: the shortest time that any rank was in it; shape [ranks, KEPT]."""
    told = seconds[:, ~np.isnan(seconds).any(axis=0)][:, -LATEST:]
    return float(np.median(told.min(axis=0))) if told.size else None


def _tier_s(seconds: Table, tiers: Sequence[str]) -> float | None:
    """Of the slowest tier; those of one rank have nothing to average."""
    members = [[rank for rank, other in enumerate(tiers) if other == tier] for tier in dict.fromkeys(tiers)]
    found = [_transfer_s(seconds[ranks]) for ranks in members if len(ranks) > 1]
    known = [each for each in found if each is not None]
    return max(known) if known and len(known) == len(found) else None
