"""Reference durations of every phase: robust fits of duration against samples.

There is one reference per rank, per device class and for the fleet. A step's cost is affine in its
number of samples, not proportional: a small batch is not proportionally cheap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
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
"""Least scatter of equal hosts, in log. Their CPU shares agree within 5 %, evenly distributed,
which is a standard deviation of 3 %."""
_PRIOR_DEVIATIONS = 4
"""Number of deviations that `MIN_SCATTER` weighs as much as. A run with a few hosts has only one or
two, and one of them would otherwise hide every slower host of a run of three."""
RankSelection = Callable[[FloatArray, Sequence[int]], list[int]]
"""Selection of the ranks that set the standard of a class, by every rank's usual duration."""
_COMPUTE = list(COMPUTE_CODES)
# Below one nanosecond, the resolution of the tables, a duration counts as absent.
_MIN_SECONDS = 1e-9


class LocalWork(Protocol):
    """Work of every rank without communication: S steps, W ranks.

    No reference may use a step that is not `counted`.
    """

    @property
    def samples(self) -> IntArray:
        """Return the samples per step and rank, [S, W]."""
        ...

    @property
    def counted(self) -> BoolArray:
        """Return a mask of the recorded steps outside warm-up, [S, W]."""
        ...

    def of_rank(self, rank: int) -> FloatArray:
        """Return the seconds of each phase of a rank, [S, P]."""
        ...


@dataclass(frozen=True)
class ExpectedDurations:
    """Expected seconds of the phases, a + b n for n samples.

    Attributes:
        fits: a and b of every rank and phase, [W, P, 2].
        samples: number of samples n of every step and rank, [S, W].
    """

    fits: FloatArray
    samples: IntArray

    def of_rank(self, rank: int, codes: Sequence[int]) -> FloatArray:
        """Return the expected seconds of some phases of a rank, [S, codes]."""
        fits = self.fits[rank, list(codes)]
        return fits[:, 0] + fits[:, 1] * self.samples[:, rank, None]

    def total(self, rank: int, codes: Sequence[int]) -> FloatArray:
        """Return the expected seconds of some phases of a rank together, [S]."""
        a, b = self.fits[rank, list(codes)].sum(axis=0)
        total: FloatArray = a + b * self.samples[:, rank]
        return total


@dataclass(frozen=True)
class References:
    """Expected durations of the phases by three standards.

    Attributes:
        own: usual durations of each rank itself.
        device: durations of the rank's device class.
        fleet: durations of the fastest device class.
        fastest: names (tier/device class) of the classes that define the fleet reference of
            compute.
        scatter: robust standard deviation of the log compute time among equal ranks (of one class,
            or of the fastest classes).
    """

    own: ExpectedDurations
    device: ExpectedDurations
    fleet: ExpectedDurations
    fastest: tuple[str, ...]
    scatter: float


def fit_references(
    work: LocalWork, hosts: tuple[RankHost, ...], teams: Sequence[Sequence[int]] = ()
) -> References:
    """Fit a + b n to every phase of every rank and derive the class and fleet references.

    A class is a device class within a tier. Its reference is the lower median of its fastest ranks
    (see `find_fastest_ranks`), so a slow majority of a class does not make the class slow. If
    ranks have different numbers of samples, their fits are too inexact for this, and the lower
    median of all ranks of the class is used.

    The fastest class is the one with the least compute time at the usual batch, together with all
    classes within 10 % of it. Similar classes count as one; otherwise the luckiest of several
    would set the standard. Phases other than compute have their own fastest classes, because a
    host with a fast processor may have a slow drive.

    Args:
        work: work of the run's ranks.
        hosts: host of every rank.
        teams: ranks that do the same work; each team is a fleet of its own. All ranks without it.

    Returns:
        References for every step, rank and phase.
    """
    # A rank that has only warm-up steps (in a very short run) is fitted to those.
    usable = np.where(work.counted.any(axis=0), work.counted, True)
    fits = _fit_ranks(work, usable)
    usual = float(np.median(work.samples[usable]))
    sizes = work.samples[usable]
    durations = _UsualDurations(
        fits,
        fits[:, :, 0] + fits[:, :, 1] * usual,
        find_fastest_ranks if (sizes == sizes[0]).all() else _select_all,
    )
    fleets = [
        _fit_fleet(durations, _group_by_class(hosts, team))
        for team in teams or (tuple(range(len(hosts))),)
    ]
    device, fleet = np.empty_like(fits), np.empty_like(fits)
    for each in fleets:
        for name, ranks in each.classes.items():
            device[ranks], fleet[ranks] = each.device[name], each.fleet
    compute = durations.compute
    groups = [ranks for each in fleets for ranks in each.classes.values()]
    return References(
        own=ExpectedDurations(fits, work.samples),
        device=ExpectedDurations(device, work.samples),
        fleet=ExpectedDurations(fleet, work.samples),
        fastest=tuple(dict.fromkeys(name for each in fleets for name in each.fastest)),
        scatter=max(
            MIN_SCATTER,
            _estimate_scatter(compute, groups),
            _estimate_scatter(compute, [each.leaders for each in fleets]),
        ),
    )


@dataclass(frozen=True)
class _UsualDurations:
    """Fits of every rank and phase, [W, P, 2], and seconds at the usual batch, [W, P]."""

    fits: FloatArray
    at_usual: FloatArray
    select: RankSelection

    @property
    def compute(self) -> FloatArray:
        seconds: FloatArray = self.at_usual[:, _COMPUTE].sum(axis=1)
        return seconds


@dataclass(frozen=True)
class _Fleet:
    """References of ranks that do the same work: of each class, and of the fastest, [P, 2]."""

    classes: dict[str, list[int]]
    device: dict[str, FloatArray]
    fleet: FloatArray
    fastest: tuple[str, ...]
    leaders: list[int]


def _fit_fleet(durations: _UsualDurations, classes: dict[str, list[int]]) -> _Fleet:
    fits, at_usual, select = durations.fits, durations.at_usual, durations.select
    fastest = _find_fastest_classes(durations.compute, classes, select)
    leaders = [rank for name in fastest for rank in classes[name]]
    fleet = _fit_class(fits, at_usual, leaders, select)
    for phase in set(range(fits.shape[1])) - set(_COMPUTE):
        quickest = [
            rank
            for name in _find_fastest_classes(at_usual[:, phase], classes, select)
            for rank in classes[name]
        ]
        fleet[phase] = fits[
            _find_lower_median(at_usual[:, phase], select(at_usual[:, phase], quickest)), phase
        ]
    device = {name: _fit_class(fits, at_usual, ranks, select) for name, ranks in classes.items()}
    return _Fleet(classes, device, fleet, fastest, leaders)


def fit_line(samples: IntArray, seconds: FloatArray) -> tuple[float, float]:
    """Fit seconds = a + b n robustly, with a, b >= 0.

    The line fits the median duration of every batch size, weighted by how often the size occurs,
    and passes through the median of the most frequent size.

    Args:
        samples: batch sizes, [N].
        seconds: durations, [N].

    Returns:
        (a, b); b is 0 if only one batch size occurs, and both are 0 without samples.
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
    # The upper bound keeps a >= 0: a line through the heaviest point cannot be steeper than
    # proportional cost.
    slope = min(max(float(slope), 0.0), float(medians[heaviest] / max(sizes[heaviest], 1)))
    return float(medians[heaviest] - slope * sizes[heaviest]), slope


def _fit_ranks(work: LocalWork, usable: BoolArray) -> FloatArray:
    """Return (a, b) per rank and phase, [W, P, 2]."""
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
    """Return the ratio of the median of a rank's total compute to the sum of its phases' medians.

    Noise is skewed, so the median of a sum exceeds the sum of the medians.
    """
    expected = fits[:, 0].sum() + fits[:, 1].sum() * samples
    return float(np.exp(np.median(compute_log_ratio(seconds.sum(axis=1), expected))))


def _get_class_name(host: RankHost) -> str:
    return f"{host.tier}/{host.device_class}" if host.tier or host.device_class else host.host


def _group_by_class(hosts: tuple[RankHost, ...], ranks: Iterable[int]) -> dict[str, list[int]]:
    classes: dict[str, list[int]] = {}
    for rank in ranks:
        classes.setdefault(_get_class_name(hosts[rank]), []).append(rank)
    return classes


def _find_fastest_classes(
    seconds: FloatArray, classes: dict[str, list[int]], select: RankSelection
) -> tuple[str, ...]:
    """Return the names of the classes that take the least time, within 10 %.

    Classes that take no time at all are ignored unless no class takes any.
    """
    leading = {
        name: float(seconds[_find_lower_median(seconds, select(seconds, ranks))])
        for name, ranks in classes.items()
    }
    taking = {name: value for name, value in leading.items() if value > _MIN_SECONDS} or leading
    return tuple(
        name for name, value in taking.items() if value <= MIN_RATIO * min(taking.values())
    )


def find_fastest_ranks(seconds: FloatArray, ranks: Sequence[int]) -> list[int]:
    """Return the fastest ranks that are alike: within 10 % of each next slower one.

    Their number is at least a quarter of the ranks, and two if there are four or more. A single
    lucky rank therefore sets no standard for many.

    Args:
        seconds: usual duration of every rank, [W].
        ranks: ranks of one class, at least one.
    """
    ordered = sorted(ranks, key=lambda rank: seconds[rank])
    least = max(-(-len(ordered) // 4), 2 if len(ordered) > 3 else 1)
    for count in range(least, len(ordered)):
        if seconds[ordered[count]] > MIN_RATIO * max(seconds[ordered[count - 1]], _MIN_SECONDS):
            return ordered[:count]
    return ordered


def _select_all(_seconds: FloatArray, ranks: Sequence[int]) -> list[int]:
    return list(ranks)


def _find_lower_median(values: FloatArray, ranks: list[int]) -> int:
    """Return the rank with the lower median of `values` among `ranks`."""
    return sorted(ranks, key=lambda rank: values[rank])[(len(ranks) - 1) // 2]


def _fit_class(
    fits: FloatArray, at_usual: FloatArray, ranks: list[int], select: RankSelection
) -> FloatArray:
    """Return the fits of the reference rank of a class, [P, 2].

    One rank stands for all compute phases, and one for each other phase.
    """
    durations = at_usual.copy()
    durations[:, _COMPUTE] = at_usual[:, _COMPUTE].sum(axis=1, keepdims=True)
    middle = np.array([_find_lower_median(each, select(each, ranks)) for each in durations.T])
    chosen: FloatArray = fits[middle, np.arange(fits.shape[1])]
    return chosen


def _estimate_scatter(compute: FloatArray, groups: Iterable[list[int]]) -> float:
    """Return the robust scatter (log) of equal ranks about the median rank of their group.

    The lower third of the deviations is used because half of a group may be slow. For a normal
    distribution, this quantile of the absolute deviations is 0.43 standard deviations. The
    variance is shrunk towards that of `MIN_SCATTER`, the more the fewer deviations there are; this
    is the scale of the posterior under a scaled inverse chi-squared prior (Gelman et al., Bayesian
    Data Analysis, 2013, section 2.6). A single deviation gives no estimate, so the result is 0.
    """
    deviations: list[float] = []
    for ranks in groups:
        middle = _find_lower_median(compute, ranks)
        others = [rank for rank in ranks if rank != middle]
        deviations += np.abs(
            compute_log_ratio(compute[others], np.full(len(others), compute[middle]))
        ).tolist()
    if len(deviations) < 2:
        return 0.0
    used = (len(deviations) - 1) // 3 + 1
    variance = (sorted(deviations)[used - 1] / 0.43) ** 2
    prior = _PRIOR_DEVIATIONS
    return math.sqrt((prior * MIN_SCATTER**2 + used * variance) / (prior + used))


def compute_log_ratio(seconds: npt.ArrayLike, expected: npt.ArrayLike) -> FloatArray:
    """Return ln(seconds / expected), or 0 where either of them is absent."""
    seconds, expected = (
        np.asarray(seconds, dtype=np.float64),
        np.asarray(expected, dtype=np.float64),
    )
    known = (seconds > _MIN_SECONDS) & (expected > _MIN_SECONDS)
    ratio = np.where(known, seconds, 1.0) / np.where(known, expected, 1.0)
    logs: FloatArray = np.log(ratio)
    return logs
