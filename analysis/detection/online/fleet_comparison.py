"""Who is slower than its equals all along, by what its steps usually took so far: the definition of
`reference`, on the references of the moment.
"""

from __future__ import annotations

import math
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
    """One step of every rank, as it usually is (a `LocalWork`)."""

    seconds: FloatArray
    samples: IntArray
    counted: BoolArray

    def of_rank(self, rank: int) -> FloatArray:
        """Seconds of each phase, [1, P]."""
        return self.seconds[:, rank]


@dataclass(frozen=True)
class FleetLag:
    """A rank's usual against the fastest class's: log ratio, and the probability that it truly is
    1.10 or more.
    """

    rank: int
    level: float
    confidence: float
    slow: bool


def compare_with_fleet(
    bank: SeriesBank, hosts: tuple[RankHost, ...], family: FamilySpec
) -> tuple[FleetLag, ...]:
    """Every rank's usual against the fleet's; the family's first phase stands for all of them.

    Args:
        bank: series of the ranks' work of the family.
        hosts: where each rank runs.
        family: of local work.

    Returns:
        One entry per rank that takes anything.
    """
    usual = bank.typical_seconds()
    seconds = np.zeros((1, bank.count, len(Phase)))
    code = family.codes[0]
    seconds[0, :, code] = usual
    ones = np.ones((1, bank.count), dtype=np.int64)
    references = fit_references(_TypicalStep(seconds, ones, ones > 0), hosts)
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
