"""Order of an axis's values: numbers, rates and times by size, others as in the table.

Names that all have a number, such as `weak 4` and `weak 16`, are in the order of their text and
then of the number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from laggard.core.units import parse_delay_with_unit_ms, parse_rate_with_unit_mbps

_LOGARITHMIC_FROM = 4.0

_NUMBERED_NAME = re.compile(r"[A-Za-z][\w .-]*[0-9][\w .-]*")
_LONGEST_NUMBER = 9

_UNITS: tuple[tuple[str, Callable[[object], float]], ...] = (
    ("", lambda value: float(str(value))),
    ("Mbit/s", parse_rate_with_unit_mbps),
    ("ms", parse_delay_with_unit_ms),
)


@dataclass(frozen=True)
class NumericAxis:
    """Axis whose values are numbers.

    Attributes:
        name: key of the axis.
        unit: unit of the numbers; empty if they have none.
        numbers: number of each value.
    """

    name: str
    unit: str
    numbers: Mapping[str, float]

    @property
    def is_logarithmic(self) -> bool:
        """Return True if all numbers are positive and span a factor of four."""
        values = self.numbers.values()
        return min(values) > 0 and max(values) >= _LOGARITHMIC_FROM * min(values)


def read_numeric_axis(name: str, values: Sequence[str]) -> NumericAxis | None:
    """Return the numbers of an axis in one unit; None if a value is no number."""
    for unit, parse in _UNITS:
        try:
            numbers = {value: parse(value) for value in values}
        except ValueError:
            continue
        if all(map(math.isfinite, numbers.values())):
            return NumericAxis(name, unit, numbers)
    return None


def rank_values(name: str, values: Sequence[str]) -> dict[str, int]:
    """Return the place of every value: by size, or in the order of their first appearance."""
    ordered = list(dict.fromkeys(values))
    axis = read_numeric_axis(name, ordered)
    if axis is not None:
        ordered.sort(key=axis.numbers.__getitem__)
    elif all(_NUMBERED_NAME.fullmatch(value) for value in ordered):
        ordered.sort(key=_split_numbers)
    return {value: place for place, value in enumerate(ordered)}


def _split_numbers(name: str) -> list[tuple[str, int]]:
    """Return the parts of a name: text and the number after it."""
    found = re.findall(rf"([^0-9]*)([0-9]{{0,{_LONGEST_NUMBER}}})", name)
    return [(text, int(number or 0)) for text, number in found]
