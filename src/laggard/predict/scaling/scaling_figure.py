"""Figure of speed and efficiency against the number of workers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.analysis.campaign.log_ticks import set_log_ticks
from laggard.analysis.report.style import palette
from laggard.analysis.report.style.canvas import MUTED, WIDE_IN, house_style, new_figure
from laggard.analysis.report.style.figure_file import save_figure
from laggard.analysis.report.style.labels import sanitize_label
from laggard.predict.scaling.recorded_speeds import RecordedSpeed
from laggard.predict.scaling.scaling_curve import ScalingCurve, ScalingPoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HEIGHT_IN = 4.2
_LEAST_RATIO = 16
"""Ratio of the largest to the smallest number of workers from which axes are logarithmic."""


def save_scaling_figure(curve: ScalingCurve, path: Path) -> None:
    """Draw a curve, and write it to an SVG or PNG file.

    Args:
        curve: the speeds.
        path: file to write; its suffix is `.svg` or `.png`.

    Raises:
        InputError: the suffix is another one.
        OSError: the file cannot be written.
    """
    save_figure(draw_scaling(curve), path)


def draw_scaling(curve: ScalingCurve) -> Figure:
    """Draw speed beside efficiency, which is the speed of a worker relative to the first point."""
    points = sorted(curve.points, key=lambda each: each.workers)
    numbers = [each.workers for each in points]
    alone = points[0].samples_per_s / points[0].workers
    with house_style():
        figure = new_figure(WIDE_IN, _HEIGHT_IN)
        figure.suptitle(f"{sanitize_label(curve.name)}: more workers")
        speed, efficiency = figure.subplots(1, 2)
        for axes in (speed, efficiency):
            if numbers[-1] >= _LEAST_RATIO * numbers[0]:
                axes.set_xscale("log")
                set_log_ticks(axes.xaxis, numbers[0] / 1.1, numbers[-1] * 1.1)
            axes.set_xlabel("workers")
            axes.grid()
        _draw_speeds(speed, points, curve.recorded, numbers, [alone * each for each in numbers])
        speed.set_ylabel("samples per second")
        # Without an upper limit, the line of perfect scaling would hide all others.
        fastest = [each.samples_per_s for each in points]
        fastest += [each.samples_per_s for each in curve.recorded]
        speed.set_ylim(0, 1.25 * max(fastest))
        _draw_speeds(
            efficiency,
            [_to_efficiency(each, alone) for each in points],
            [
                RecordedSpeed(each.workers, each.samples, each.samples_per_s / each.workers / alone)
                for each in curve.recorded
            ],
            numbers,
            [1.0] * len(numbers),
        )
        efficiency.set_ylabel(f"efficiency, relative to {numbers[0]:,}")
        efficiency.set_ylim(bottom=0)
        if curve.knee is not None:
            for axes in (speed, efficiency):
                axes.axvline(curve.knee, color=MUTED, linewidth=1, label=f"knee: {curve.knee:.1f}")
        handles, labels = speed.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure


def _to_efficiency(point: ScalingPoint, alone: float) -> ScalingPoint:
    perfect = point.workers * alone
    return ScalingPoint(
        point.workers, point.samples_per_s / perfect, point.low / perfect, point.high / perfect
    )


def _draw_speeds(
    axes: Axes,
    points: Sequence[ScalingPoint],
    recorded: Sequence[RecordedSpeed],
    numbers: Sequence[int],
    perfect: Sequence[float],
) -> None:
    axes.plot(numbers, perfect, color=MUTED, linestyle="--", label="each worker adds alike")
    axes.fill_between(
        numbers,
        [each.low for each in points],
        [each.high for each in points],
        color=palette.TIERS[0],
        alpha=0.2,
        linewidth=0,
    )
    axes.plot(
        numbers,
        [each.samples_per_s for each in points],
        color=palette.TIERS[0],
        marker="o",
        markersize=4,
        label="predicted",
    )
    if recorded:
        axes.plot(
            [each.workers for each in recorded],
            [each.samples_per_s for each in recorded],
            color=palette.TIERS[1],
            linestyle="none",
            marker="s",
            markersize=5,
            label="run",
        )
