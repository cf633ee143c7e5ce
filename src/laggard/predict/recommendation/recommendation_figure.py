"""Figure of a recommendation: time and cost of the candidates, their front and the budget."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.analysis.campaign.log_ticks import set_log_ticks
from laggard.analysis.report.style import palette
from laggard.analysis.report.style.canvas import (
    INK,
    MUTED,
    WIDE_IN,
    house_style,
    new_figure,
)
from laggard.analysis.report.style.figure_file import save_figure
from laggard.analysis.report.style.labels import sanitize_label
from laggard.predict.recommendation.recommend_scenario import Recommendation
from laggard.predict.recommendation.recommendation_output import format_budget

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HOUR_S = 3600.0
_HEIGHT_IN = 5.0


def save_recommendation_figure(recommendation: Recommendation, path: Path) -> None:
    """Draw the candidates, and write them to an SVG or PNG file.

    Args:
        recommendation: the recommendation.
        path: file to write; its suffix is `.svg` or `.png`.

    Raises:
        InputError: the suffix is another one.
        OSError: the file cannot be written.
    """
    with house_style():
        figure = new_figure(WIDE_IN, _HEIGHT_IN)
        axes = figure.add_subplot()
        _draw_candidates(axes, recommendation)
        _draw_budget(axes, recommendation)
        name = sanitize_label(recommendation.scenario.name)
        axes.set_title(f"{name}: {format_budget(recommendation)}")
    save_figure(figure, path)


def _draw_candidates(axes: Axes, recommendation: Recommendation) -> None:
    count = len(recommendation.candidates)
    front, answer = list(recommendation.front), recommendation.choice.candidate
    axes.set_xscale("log")
    axes.set_yscale("log")
    _draw_points(axes, recommendation, range(count), MUTED, "candidate", size=2.5)
    axes.plot(
        *_place(recommendation, front),
        color=palette.TIERS[0],
        marker="o",
        markersize=4.5,
        label="no other is faster and cheaper",
    )
    shown = recommendation.nearest if answer is None else answer
    low_s, usual_s, high_s = (float(each) / _HOUR_S for each in recommendation.times_s[:, shown])
    low, usual, high = recommendation.costs(shown)
    # Time and cost of one candidate go together, so its interval is a line.
    axes.plot([low_s, high_s], [low, high], color=INK, linewidth=1.6)
    word = "nearest" if answer is None else "recommended"
    label = f"{word}: {recommendation.candidates[shown].name}, 90 % interval"
    axes.plot(
        [usual_s], [usual], color=INK, marker="D", markersize=7, label=sanitize_label(label, 60)
    )
    if recommendation.measured:
        _draw_points(
            axes, recommendation, recommendation.measured, palette.TIERS[1], "measured", size=6
        )


def _draw_points(
    axes: Axes,
    recommendation: Recommendation,
    numbers: Iterable[int],
    color: str,
    label: str,
    *,
    size: float,
) -> None:
    axes.plot(
        *_place(recommendation, numbers),
        color=color,
        linestyle="none",
        marker="s" if label == "measured" else "o",
        markersize=size,
        label=label,
    )


def _place(recommendation: Recommendation, numbers: Iterable[int]) -> tuple[list[float], ...]:
    chosen = list(numbers)
    return (
        [float(recommendation.times_s[1, each]) / _HOUR_S for each in chosen],
        [recommendation.costs(each)[1] for each in chosen],
    )


def _draw_budget(axes: Axes, recommendation: Recommendation) -> None:
    budget = recommendation.budget
    axes.axvline(budget.within_s / _HOUR_S, color=MUTED, linestyle="--", label="budget")
    if budget.cost_below < float("inf"):
        axes.axhline(budget.cost_below, color=MUTED, linestyle="--")
    set_log_ticks(axes.xaxis, *axes.get_xlim())
    set_log_ticks(axes.yaxis, *axes.get_ylim())
    axes.set_xlabel("time, h (logarithmic)")
    unit = f", {recommendation.unit}" if recommendation.unit else ""
    axes.set_ylabel(f"cost{unit} (logarithmic)")
    axes.grid()
    axes.legend()
