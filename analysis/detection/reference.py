"""What a phase should have taken: robust fits of duration against samples, per rank, device class
and fleet.

A step's cost is affine in its samples, not proportional: small batches are not proportionally
cheap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from laggard.analysis.detection.intervals import MIN_RATIO
from laggard.analysis.tables.columns import BoolArray, FloatArray, IntArray
from laggard.analysis.tables.load_run import RankHost
from laggard.core.span_schema import COMPUTE_PHASES, Phase

COMPUTE_CODES = tuple(phase.code for phase in COMPUTE_PHASES)
MIN_SCATTER = 0.03
"""Equal hosts are given equal shares within 5 %, evenly spread: 3 % in standard deviation."""
_COMPUTE = list(COMPUTE_CODES)
_MIN_SECONDS = 1e-9


class LocalWork(Protocol):
    """What ranks did by themselves, of `samples`, [S, W]; no reference may use what is not
    `counted`, [S, W].
    """

    @property
    def samples(self) -> IntArray:
        """Per step and rank."""
        ...

    @property
    def counted(self) -> BoolArray:
        """Which steps of which rank are there, and no warm-up."""
        ...

    def of_rank(self, rank: int) -> FloatArray:
        """Seconds of each phase, [S, P]."""
        ...


@dataclass(frozen=True)
class ExpectedDurations:
    """Seconds that phases should have taken: a + b n.

    Attributes:
        fits: a and b of every rank and phase, [W, P, 2].
        samples: n of every step and rank, [S, W].
    """

    fits: FloatArray
    samples: IntArray

    def of_rank(self, rank: int, codes: Sequence[int]) -> FloatArray:
        """Of some phases of a rank, [S, codes]."""
        fits = self.fits[rank, list(codes)]
        return fits[:, 0] + fits[:, 1] * self.samples[:, rank, None]

    def total(self, rank: int, codes: Sequence[int]) -> FloatArray:
        """Of some phases of a rank together, [S]."""
        a, b = self.fits[rank, list(codes)].sum(axis=0)
        total: FloatArray = a + b * self.samples[:, rank]
        return total


@dataclass(frozen=True)
class References:
    """What phases should have taken.

    Attributes:
        own: of each rank at its usual.
        device: of the rank's device class.
        fleet: of the fastest device class.
        fastest: names (tier/device class) of the classes that reference is of.
        scatter: robust standard deviation of the log compute of equal ranks (of a class, or of the
            fastest classes).
    """

    own: ExpectedDurations
    device: ExpectedDurations
    fleet: ExpectedDurations
    fastest: tuple[str, ...]
    scatter: float


def fit_references(work: LocalWork, hosts: tuple[RankHost, ...]) -> References:
    """Fits a + b n to every phase of every rank and derives the class and fleet references.

    A class is a device class within a tier. Its reference is the lower median of its ranks' fits,
    so that one slow member of two does not make the class slow. The fastest class is the one with
    the least compute at the usual batch, together with those within 10 % of it: classes that are
    alike are one, or the luckiest of several would set the standard. What is no compute has fastest
    classes of its own: drives are not as fast as the processors beside them.

    Args:
        work: of the run.
        hosts: where each rank ran.

    Returns:
        References for every step, rank and phase.
    """
    usable = np.where(work.counted.any(axis=0), work.counted, True)
    fits = _fit_ranks(work, usable)
    usual = float(np.median(work.samples[usable]))
    at_usual = fits[:, :, 0] + fits[:, :, 1] * usual
    classes = _group_by_class(hosts)
    compute = at_usual[:, _COMPUTE].sum(axis=1)
    fastest = _find_fastest_classes(compute, classes)
    leaders = [rank for name in fastest for rank in classes[name]]
    fleet = _fit_class(fits, at_usual, leaders)
    for phase in set(range(fits.shape[1])) - set(_COMPUTE):
        quickest = [
            rank
            for name in _find_fastest_classes(at_usual[:, phase], classes)
            for rank in classes[name]
        ]
        fleet[phase] = fits[_find_lower_median(at_usual[:, phase], quickest), phase]
    per_class = {name: _fit_class(fits, at_usual, ranks) for name, ranks in classes.items()}
    device = np.stack([per_class[_get_class_name(host)] for host in hosts])
    return References(
        own=ExpectedDurations(fits, work.samples),
        device=ExpectedDurations(device, work.samples),
        fleet=ExpectedDurations(np.broadcast_to(fleet, fits.shape), work.samples),
        fastest=fastest,
        scatter=max(
            MIN_SCATTER,
            _estimate_scatter(compute, classes.values()),
            _estimate_scatter(compute, [leaders]),
        ),
    )


def fit_line(samples: IntArray, seconds: FloatArray) -> tuple[float, float]:
    """Robust fit of seconds = a + b n with a, b >= 0: through the medians of the batch sizes that
    occur, by their counts.

    Args:
        samples: batch sizes, [N].
        seconds: durations, [N].

    Returns:
        (a, b); b is 0 where only one size occurs.
    """
    if len(samples) == 0:
        return 0.0, 0.0
    if (samples == samples[0]).all():
        return float(np.median(seconds)), 0.0
    sizes, index, counts = np.unique(samples, return_inverse=True, return_counts=True)
    medians = np.array([np.median(seconds[index == i]) for i in range(len(sizes))])
    heaviest = int(np.argmax(counts))
    mean_n, mean_d = np.average(sizes, weights=counts), np.average(medians, weights=counts)
    spread = np.average((sizes - mean_n) ** 2, weights=counts)
    slope = np.average((sizes - mean_n) * (medians - mean_d), weights=counts) / spread
    slope = min(max(float(slope), 0.0), float(medians[heaviest] / max(sizes[heaviest], 1)))
    return float(medians[heaviest] - slope * sizes[heaviest]), slope


def _fit_ranks(work: LocalWork, usable: BoolArray) -> FloatArray:
    """(a, b) per rank and phase, [W, P, 2]."""
    world = work.samples.shape[1]
    fits = np.zeros((world, len(Phase), 2))
    for rank in range(world):
        counted, every = usable[:, rank], work.of_rank(rank)
        samples, seconds = work.samples[counted, rank], every[counted]
        for phase in np.flatnonzero(every.any(axis=0)):
            fits[rank, phase] = fit_line(samples, seconds[:, phase])
        fits[rank, _COMPUTE] *= _compute_excess_of_sum(
            seconds[:, _COMPUTE], fits[rank, _COMPUTE], samples
        )
    return fits


def _compute_excess_of_sum(seconds: FloatArray, fits: FloatArray, samples: IntArray) -> float:
    """How much the median of a rank's compute exceeds the sum of its phases' medians (noise is
    skewed, so it does).
    """
    expected = fits[:, 0].sum() + fits[:, 1].sum() * samples
    return float(np.exp(np.median(compute_log_ratio(seconds.sum(axis=1), expected))))


def _get_class_name(host: RankHost) -> str:
    return f"{host.tier}/{host.device_class}" if host.tier or host.device_class else host.host


def _group_by_class(hosts: tuple[RankHost, ...]) -> dict[str, list[int]]:
    classes: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        classes.setdefault(_get_class_name(host), []).append(rank)
    return classes


def _find_fastest_classes(seconds: FloatArray, classes: dict[str, list[int]]) -> tuple[str, ...]:
    """Names of the classes that take the least, within 10 %; where some take nothing, of those that
    take anything.
    """
    leading = {
        name: float(seconds[_find_lower_median(seconds, ranks)]) for name, ranks in classes.items()
    }
    taking = {name: value for name, value in leading.items() if value > _MIN_SECONDS} or leading
    return tuple(
        name for name, value in taking.items() if value <= MIN_RATIO * min(taking.values())
    )


def _find_lower_median(values: FloatArray, ranks: list[int]) -> int:
    """The rank in the (lower) middle of its class."""
    return sorted(ranks, key=lambda rank: values[rank])[(len(ranks) - 1) // 2]


def _fit_class(fits: FloatArray, at_usual: FloatArray, ranks: list[int]) -> FloatArray:
    """Fits of the rank in the middle of a class, [P, 2]: one rank for all of compute, one for each
    other phase.
    """
    middle = np.array(
        [_find_lower_median(at_usual[:, phase], ranks) for phase in range(fits.shape[1])]
    )
    middle[_COMPUTE] = _find_lower_median(at_usual[:, _COMPUTE].sum(axis=1), ranks)
    chosen: FloatArray = fits[middle, np.arange(fits.shape[1])]
    return chosen


def _estimate_scatter(compute: FloatArray, groups: Iterable[list[int]]) -> float:
    """From the lower third of what ranks deviate from the middle one of their group; a single
    deviation tells nothing.

    The lower third, because half of a group may be slow; for a normal distribution it is 0.43
    standard deviations.
    """
    deviations: list[float] = []
    for ranks in groups:
        middle = _find_lower_median(compute, ranks)
        others = [rank for rank in ranks if rank != middle]
        deviations += np.abs(
            compute_log_ratio(compute[others], np.full(len(others), compute[middle]))
        ).tolist()
    return sorted(deviations)[(len(deviations) - 1) // 3] / 0.43 if len(deviations) > 1 else 0.0


def compute_log_ratio(seconds: npt.ArrayLike, expected: npt.ArrayLike) -> FloatArray:
    """ln(seconds / expected), 0 where either is nothing."""
    seconds, expected = (
        np.asarray(seconds, dtype=np.float64),
        np.asarray(expected, dtype=np.float64),
    )
    known = (seconds > _MIN_SECONDS) & (expected > _MIN_SECONDS)
    ratio = np.where(known, seconds, 1.0) / np.where(known, expected, 1.0)
    logs: FloatArray = np.log(ratio)
    return logs
