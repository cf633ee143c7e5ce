"""Effects of single axes and of pairs of axes on the makespan, or on samples per second.

The mean of a value is the geometric mean over all setups that have it. If every combination of
values was run, the variation of the setups' logarithms is the sum of the parts of axes, of pairs
and of the rest (R. Jain, The Art of Computer Systems Performance Analysis, 1991, chapter 22). A
pair interacts if the effect of one axis depends on the value of the other.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from laggard.analysis.campaign.setups import CampaignSetup, list_varied_axes
from laggard.analysis.campaign.speed_measure import SpeedMeasure
from laggard.analysis.estimates.estimate import (
    Estimate,
    compute_welch_error,
    make_estimate,
    to_exponential,
)

_MOST_VALUES = 60
"""Largest number of values of an axis that has effects; others are not printed or drawn."""


@dataclass(frozen=True)
class ValueEffect:
    """One value of an axis, or one combination of values of a pair.

    Attributes:
        values: text of each axis's value.
        mean: geometric mean of the measure, in its unit.
        ratio: mean divided by the expected one: the mean of all setups for a single axis, and
            the product of the effects of both axes for a pair.
    """

    values: tuple[str, ...]
    mean: Estimate
    ratio: float


@dataclass(frozen=True)
class AxisEffect:
    """Main effect of one axis, or interaction of two.

    Attributes:
        axes: name of the axis, or of both.
        values: its values, in the order of the table.
        share: part of the variation of the setups; None if some combinations are missing.
    """

    axes: tuple[str, ...]
    values: tuple[ValueEffect, ...]
    share: float | None


@dataclass(frozen=True)
class AxisEffects:
    """All effects of a campaign.

    Attributes:
        axes: main effects.
        pairs: interactions.
        is_complete: whether every combination of values was run.
    """

    axes: tuple[AxisEffect, ...]
    pairs: tuple[AxisEffect, ...]
    is_complete: bool


@dataclass(frozen=True)
class _SetupMean:
    values: Mapping[str, str]
    logarithms: tuple[float, ...]
    mean: float


def estimate_axis_effects(
    setups: Sequence[CampaignSetup], axes: Sequence[str], measure: SpeedMeasure
) -> AxisEffects:
    """Estimate the effects of the axes that have at least two values.

    Args:
        setups: all setups of a table.
        axes: names of the axes.
        measure: measure of the effects.
    """
    rows = [row for setup in setups for row in setup.rows]
    varied = list_varied_axes(rows, axes)
    counts = {axis: len({setup.values[axis] for setup in setups}) for axis in varied}
    is_complete = math.prod(counts.values()) == len(setups)
    means = [_measure_setup(setup, measure) for setup in setups]
    small = [axis for axis in varied if counts[axis] <= _MOST_VALUES]
    centers = {axis: _average_by(means, (axis,)) for axis in small}
    grand = statistics.fmean(each.mean for each in means)

    def expect_main(_values: tuple[str, ...]) -> float:
        return grand

    def expect_pair(first: str, other: str) -> Callable[[tuple[str, ...]], float]:
        return lambda values: centers[first][values[:1]] + centers[other][values[1:]] - grand

    mains = [_build_effect(means, (axis,), expect_main) for axis in small]
    pairs = [
        _build_effect(means, pair, expect_pair(*pair)) for pair in itertools.combinations(small, 2)
    ]
    total = statistics.fmean((each.mean - grand) ** 2 for each in means)
    if not is_complete or not total:
        return AxisEffects(tuple(mains), tuple(pairs), is_complete)
    return AxisEffects(
        tuple(_with_share(effect, total) for effect in mains),
        tuple(_with_share(effect, total) for effect in pairs),
        is_complete,
    )


def _measure_setup(setup: CampaignSetup, measure: SpeedMeasure) -> _SetupMean:
    logarithms = tuple(measure.collect_logarithms(setup).values())
    return _SetupMean(setup.values, logarithms, statistics.fmean(logarithms))


def _group_by(
    means: Sequence[_SetupMean], axes: tuple[str, ...]
) -> dict[tuple[str, ...], list[_SetupMean]]:
    groups: dict[tuple[str, ...], list[_SetupMean]] = {}
    for each in means:
        groups.setdefault(tuple(each.values[axis] for axis in axes), []).append(each)
    return groups


def _average_by(means: Sequence[_SetupMean], axes: tuple[str, ...]) -> dict[tuple[str, ...], float]:
    return {
        values: statistics.fmean(each.mean for each in group)
        for values, group in _group_by(means, axes).items()
    }


def _build_effect(
    means: Sequence[_SetupMean],
    axes: tuple[str, ...],
    expect: Callable[[tuple[str, ...]], float],
) -> AxisEffect:
    effects = []
    for values, group in _group_by(means, axes).items():
        estimate = _average_group(group)
        ratio = math.exp(estimate.mean - expect(values))
        effects.append(ValueEffect(values, to_exponential(estimate), ratio))
    return AxisEffect(axes, tuple(effects), None)


def _average_group(group: Sequence[_SetupMean]) -> Estimate:
    """Return the mean of the setups' means; its interval is that of the repeats' spread."""
    mean = statistics.fmean(each.mean for each in group)
    samples = [each.logarithms for each in group]
    if min(map(len, samples)) < 2:
        return Estimate(mean, None, None)
    error, freedom = compute_welch_error(*samples)
    return make_estimate(mean, error / len(group), freedom)


def _with_share(effect: AxisEffect, total: float) -> AxisEffect:
    part = statistics.fmean(math.log(each.ratio) ** 2 for each in effect.values)
    return AxisEffect(effect.axes, effect.values, part / total)
