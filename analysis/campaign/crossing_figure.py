"""Panel of a crossing point: the measure of two setups over the numeric axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from laggard.analysis.campaign.crossings import Crossing
from laggard.analysis.campaign.log_ticks import set_log_ticks
from laggard.analysis.campaign.setups import format_values, name_axes
from laggard.analysis.campaign.speed_measure import SpeedMeasure
from laggard.analysis.estimates.estimate import Estimate
from laggard.analysis.report.style import palette
from laggard.analysis.report.style.canvas import MUTED
from laggard.analysis.report.style.labels import sanitize_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKS = "os"


def draw_crossing(axes: Axes, crossing: Crossing, measure: SpeedMeasure) -> None:
    """Draw both setups with their intervals, and the crossing with its interval as a band."""
    axis_name = name_axes([crossing.axis])[crossing.axis]
    numbers = [point.at for point in crossing.points]
    series = (
        (crossing.before, [point.before for point in crossing.points]),
        (crossing.after, [point.after for point in crossing.points]),
    )
    if crossing.is_logarithmic:
        axes.set_xscale("log")
    axes.set_yscale("log")
    if crossing.at.low is not None and crossing.at.high is not None:
        axes.axvspan(crossing.at.low, crossing.at.high, color=MUTED, alpha=0.15, linewidth=0)
    axes.axvline(crossing.at.mean, color=MUTED, linewidth=0.9)
    for number, (value, estimates) in enumerate(series):
        _draw_series(axes, numbers, estimates, number)
        axes.lines[-1].set_label(sanitize_label(format_values({crossing.compared: value})))
    set_log_ticks(axes.yaxis, *axes.get_ylim())
    axes.set_xticks(numbers, [f"{number:g}" for number in numbers])
    axes.minorticks_off()
    unit = f", {crossing.unit}" if crossing.unit else ""
    axes.set_xlabel(sanitize_label(f"{axis_name}{unit}"))
    axes.set_ylabel(f"{measure.name}, {measure.unit} (logarithmic)")
    axes.grid(axis="y")
    axes.legend()
    shared = format_values(crossing.shared) or "crossing"
    axes.set_title(
        sanitize_label(
            f"{shared}: at {axis_name} {crossing.at.mean:.3g} {crossing.unit}".strip(), 60
        )
    )


def _draw_series(
    axes: Axes, numbers: Sequence[float], estimates: Sequence[Estimate], order: int
) -> None:
    color = palette.TIERS[order]
    for number, each in zip(numbers, estimates, strict=True):
        if each.low is not None and each.high is not None:
            axes.plot([number, number], [each.low, each.high], color=color, linewidth=1.1)
    axes.plot(
        numbers,
        [each.mean for each in estimates],
        color=color,
        linestyle=palette.LINES[order],
        marker=_MARKS[order],
        markersize=4.5,
    )
