"""Live comparison of ranks with the fastest device class, by their usual steps so far.

The definition is that of `reference`, applied to the current references.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from laggard.analysis.detection.families import FamilySpec
from laggard.analysis.detection.intervals import MIN_RATIO, Segment, is_raised
from laggard.analysis.detection.online.series_bank import SeriesBank
from laggard.analysis.detection.reference import compute_log_ratio, fit_references
from laggard.analysis.tables.columns import BoolArray, FloatArray, IntArray
from laggard.analysis.tables.load_run import RankHost
from laggard.core.span_schema import Phase


@dataclass(frozen=True)
class _TypicalStep:
    """One usual step of every rank (a `LocalWork`)."""

    seconds: FloatArray
    samples: IntArray
    counted: BoolArray

    def of_rank(self, rank: int) -> FloatArray:
        """Return the seconds of each phase of a rank, [1, P]."""
        return self.seconds[:, rank]


@dataclass(frozen=True)
class FleetLag:
    """Usual duration of a rank relative to the fastest class's.

    Attributes:
        rank: number of the rank.
        level: log ratio.
        confidence: probability that the true ratio is 1.10 or more.
        slow: whether the rank is slow by the definition.
    """

    rank: int
    level: float
    confidence: float
    slow: bool


def compare_with_fleet(
    bank: SeriesBank,
    hosts: tuple[RankHost, ...],
    family: FamilySpec,
    teams: Sequence[Sequence[int]] = (),
) -> tuple[FleetLag, ...]:
    """Compare every rank's usual duration with the fleet's.

    Args:
        bank: series of the ranks' work of the family.
        hosts: host of every rank.
        family: family of local work.
        teams: ranks that do the same work; each team is a fleet of its own. All ranks without it.

    Returns:
        One entry per rank that has any such work.
    """
    usual = bank.typical_seconds()
    seconds = np.zeros((1, bank.count, len(Phase)))
    # The bank has one duration per family, so its first phase stands for all of them.
    code = family.codes[0]
    seconds[0, :, code] = usual
    ones = np.ones((1, bank.count), dtype=np.int64)
    references = fit_references(_TypicalStep(seconds, ones, ones > 0), hosts, teams)
    ratios = compute_log_ratio(usual, references.fleet.fits[:, code].sum(axis=1))
    found = []
    for rank in np.flatnonzero(usual > 0).tolist():
        levels = bank.estimate_reference_error(rank)
        levels = replace(levels, wander=math.hypot(levels.wander, references.scatter))
        length = int(min(bank.learned_steps[rank], bank.window))
        part = Segment(0, length - 1, float(ratios[rank]), float(ratios[rank]))
        slow = part.level >= math.log(MIN_RATIO) and is_raised(part, levels, 0.0)
        found.append(FleetLag(rank, part.level, levels.confidence(part.level, length), slow))
    return tuple(found)
