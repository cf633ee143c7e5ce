"""Crossing points: values of a numeric axis at which another setup becomes the faster one.

Two setups that differ in one other axis are compared at every value of the numeric axis. Between
two values, the logarithm of their speed ratio is interpolated, over the logarithm of the axis if
its values span a factor of four. The interval of a crossing is the part of the axis where the
interpolated 95 % interval of the ratio contains 1. A crossing counts only if on each side of it
another setup is surely the faster one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from laggard.analysis.campaign.axis_values import NumericAxis, read_numeric_axis
from laggard.analysis.campaign.setups import CampaignSetup, list_varied_axes
from laggard.analysis.campaign.speed_measure import SpeedMeasure
from laggard.analysis.estimates.bootstrap import estimate_effect
from laggard.analysis.estimates.estimate import Estimate, estimate_mean, to_exponential

_FEWEST_VALUES = 3
_MOST_COMPARED = 4


@dataclass(frozen=True)
class CrossingPoint:
    """Both setups at one value of the axis.

    Attributes:
        at: value of the axis, in the unit of the crossing.
        before: mean of the measure of the setup that is faster at small values.
        after: mean of the measure of the other setup.
    """

    at: float
    before: Estimate
    after: Estimate


@dataclass(frozen=True)
class Crossing:
    """Value of an axis at which another setup becomes the faster one.

    Attributes:
        axis: the numeric axis.
        unit: unit of its values; empty if they have none.
        at: crossing, with the part of the axis where neither setup is surely faster.
        compared: axis in which the two setups differ.
        before: its value in the setup that is faster below the crossing.
        after: its value in the setup that is faster above it.
        shared: values of the remaining axes, by name.
        points: both setups at every value of the axis.
        is_logarithmic: whether it was interpolated over the logarithm of the axis.
    """

    axis: str
    unit: str
    at: Estimate
    compared: str
    before: str
    after: str
    shared: Mapping[str, str]
    points: tuple[CrossingPoint, ...]
    is_logarithmic: bool


def find_crossings(
    setups: Sequence[CampaignSetup], axes: Sequence[str], measure: SpeedMeasure
) -> tuple[Crossing, ...]:
    """Find the crossings of all pairs of setups along all numeric axes.

    Args:
        setups: all setups of a table.
        axes: names of the axes.
        measure: measure by which setups are fast.

    Returns:
        The crossings. An axis is numeric if its values are at least three different numbers,
        rates or times. Another axis is compared if it has at most four values.
    """
    rows = [row for setup in setups for row in setup.rows]
    varied = list_varied_axes(rows, axes)
    values = {axis: list(dict.fromkeys(setup.values[axis] for setup in setups)) for axis in varied}
    found = []
    for name, compared in itertools.permutations(varied, 2):
        axis = read_numeric_axis(name, values[name])
        if axis is None or len(set(axis.numbers.values())) < _FEWEST_VALUES:
            continue
        if len(values[compared]) > _MOST_COMPARED:
            continue
        for shared, series in _list_series(setups, varied, axis, compared):
            for first, other in itertools.combinations(series, 2):
                crossing = _cross(axis, series[first], series[other], measure)
                if crossing is not None:
                    at, points, first_is_before = crossing
                    before, after = (first, other) if first_is_before else (other, first)
                    found.append(
                        Crossing(
                            *(name, axis.unit, at, compared, before, after, shared, points),
                            axis.is_logarithmic,
                        )
                    )
    return tuple(found)


def _list_series(
    setups: Sequence[CampaignSetup], varied: Sequence[str], axis: NumericAxis, compared: str
) -> Iterator[tuple[dict[str, str], dict[str, dict[float, CampaignSetup]]]]:
    """Yield the shared values, and the setups by compared value and number of the axis."""
    rest = [each for each in varied if each not in (axis.name, compared)]
    groups: dict[tuple[str, ...], dict[str, dict[float, CampaignSetup]]] = {}
    for setup in setups:
        series = groups.setdefault(tuple(setup.values[each] for each in rest), {})
        number = axis.numbers[setup.values[axis.name]]
        series.setdefault(setup.values[compared], {})[number] = setup
    for shared, series in groups.items():
        yield dict(zip(rest, shared, strict=True)), series


def _cross(
    axis: NumericAxis,
    first: Mapping[float, CampaignSetup],
    other: Mapping[float, CampaignSetup],
    measure: SpeedMeasure,
) -> tuple[Estimate, tuple[CrossingPoint, ...], bool] | None:
    """Return crossing, points, and whether the first series is the faster one below it."""
    numbers = sorted(first.keys() & other.keys())
    ratios = [
        estimate_effect(
            measure.collect_slowness(first[number]), measure.collect_slowness(other[number])
        ).value
        for number in numbers
    ]
    surely = [_sign(ratio) for ratio in ratios if _sign(ratio)]
    # More than one change of the sign is no crossing from one setup to the other.
    if len([1 for a, b in itertools.pairwise(surely) if a != b]) != 1:
        return None
    first_is_before = surely[0] > 0
    if not first_is_before:
        ratios = [_negate(ratio) for ratio in ratios]
    places = [math.log(number) if axis.is_logarithmic else number for number in numbers]
    ends = [
        _find_zero(places, [value for value in line if value is not None])
        for line in (
            [ratio.mean for ratio in ratios],
            [ratio.low for ratio in ratios],
            [ratio.high for ratio in ratios],
        )
    ]
    mean, low, high = (math.exp(end) if axis.is_logarithmic else end for end in ends)
    before, after = (first, other) if first_is_before else (other, first)
    points = tuple(
        CrossingPoint(number, _average(before[number], measure), _average(after[number], measure))
        for number in numbers
    )
    return Estimate(mean, min(low, mean), max(high, mean)), points, first_is_before


def _sign(ratio: Estimate) -> int:
    """Return 1 or -1 if the ratio is surely above or below 1, else 0."""
    if ratio.low is None or ratio.high is None:
        return 0
    return (ratio.low > 0) - (ratio.high < 0)


def _negate(ratio: Estimate) -> Estimate:
    low, high = ratio.low, ratio.high
    return Estimate(-ratio.mean, None if high is None else -high, None if low is None else -low)


def _find_zero(places: Sequence[float], values: Sequence[float]) -> float:
    """Return the last place where the line through the values falls below 0."""
    steps = list(zip(itertools.pairwise(places), itertools.pairwise(values), strict=True))
    for (left, right), (above, below) in reversed(steps):
        if above > 0 >= below:
            return left + (right - left) * above / (above - below)
    return places[0] if values[0] <= 0 else places[-1]


def _average(setup: CampaignSetup, measure: SpeedMeasure) -> Estimate:
    return to_exponential(estimate_mean(list(measure.collect_logarithms(setup).values())))
