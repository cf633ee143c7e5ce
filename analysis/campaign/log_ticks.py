"""Ticks of a logarithmic axis that spans little."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter, NullLocator

if TYPE_CHECKING:
    from matplotlib.axis import Axis

_TICK_STEPS = ((1.0,), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0))
_MOST_TICKS = 8


def set_log_ticks(axis: Axis, low: float, high: float) -> None:
    """Set few ticks with short numbers, also on an axis of less than a decade."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in _TICK_STEPS:
        ticks = [step * 10.0**decade for decade in decades for step in steps]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if 3 <= len(ticks) <= _MOST_TICKS:
            break
    else:
        # Within a factor of two, a logarithmic axis is nearly linear.
        found = MaxNLocator(_MOST_TICKS - 2, steps=[1, 2, 5, 10]).tick_values(low, high)
        ticks = [float(tick) for tick in found if low <= tick <= high]
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
