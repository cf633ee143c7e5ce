"""Figure of a campaign: effects with intervals, and how the axes interact.

The upper panel has one row per setup. The lower ones show the strongest pairs of axes: parallel
lines mean that the effect of one axis does not depend on the other. The last ones show crossing
points.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.analysis.campaign.axis_effects import AxisEffect, AxisEffects, ValueEffect
from laggard.analysis.campaign.campaign_comparison import CampaignComparison
from laggard.analysis.campaign.crossing_figure import draw_crossing
from laggard.analysis.campaign.log_ticks import set_log_ticks
from laggard.analysis.campaign.setup_effects import ComparedGroup
from laggard.analysis.campaign.setups import format_value, name_axes
from laggard.analysis.campaign.speed_measure import SpeedMeasure
from laggard.analysis.estimates.estimate import Estimate
from laggard.analysis.report.style import palette
from laggard.analysis.report.style.canvas import (
    MUTED,
    WIDE_IN,
    house_style,
    new_figure,
)
from laggard.analysis.report.style.figure_file import require_figure_path, save_figure
from laggard.analysis.report.style.labels import sanitize_label
from laggard.core.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_ROWS = 40
_MOST_PAIRS = 2
_MOST_CROSSINGS = 2
_MOST_LINES = 7
_MARKS = "osD^vPX"
_ROW_IN = 0.26
_PANEL_IN = 2.9


def save_campaign_figure(compared: CampaignComparison, path: Path) -> None:
    """Draw the effects and interactions, and write them to an SVG or PNG file.

    Args:
        compared: comparison of the campaign.
        path: file to write; its suffix is `.svg` or `.png`.

    Raises:
        InputError: the suffix is another one.
        OSError: the file cannot be written.
    """
    require_figure_path(path)
    save_figure(draw_campaign(compared), path)


def draw_campaign(compared: CampaignComparison) -> Figure:
    """Draw the effects of all setups, and below them strong interactions and crossing points."""
    rows = _list_rows(compared.groups)
    pairs = select_pairs(compared.effects)
    baselines = {group.setups[0].name for group in compared.groups}
    baseline = baselines.pop() if len(baselines) == 1 else "the baseline"
    crossings = compared.crossings[:_MOST_CROSSINGS]
    heights = [0.9 + _ROW_IN * min(len(rows), _MOST_ROWS)]
    heights += [_PANEL_IN] * (bool(pairs) + bool(crossings))
    with house_style():
        figure = new_figure(WIDE_IN, sum(heights))
        panels = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        _draw_effects(panels[0].add_subplot(), rows, baseline)
        if pairs:
            axes = panels[1].subplots(1, len(pairs), squeeze=False)[0]
            names = name_axes([effect.axes[0] for effect in compared.effects.axes])
            for each, pair in zip(axes, pairs, strict=True):
                _draw_interaction(each, pair, names, compared.measure)
        if crossings:
            axes = panels[-1].subplots(1, len(crossings), squeeze=False)[0]
            for each, crossing in zip(axes, crossings, strict=True):
                draw_crossing(each, crossing, compared.measure)
        return figure


def draw_interaction(compared: CampaignComparison, axes: tuple[str, str]) -> Figure:
    """Draw the interaction of two axes.

    Raises:
        InputError: the axes are not a pair of the campaign.
    """
    names = name_axes([effect.axes[0] for effect in compared.effects.axes])
    for pair in compared.effects.pairs:
        if set(pair.axes) == set(axes):
            with house_style():
                figure = new_figure(WIDE_IN, _PANEL_IN)
                _draw_interaction(figure.add_subplot(), pair, names, compared.measure)
                return figure
    known = "; ".join(" and ".join(pair.axes) for pair in compared.effects.pairs) or "none"
    raise InputError(
        f"{' and '.join(axes)}: not two axes of {compared.table} — its pairs are: {known}"
    )


def select_pairs(effects: AxisEffects) -> tuple[AxisEffect, ...]:
    """Return the pairs that interact most, at most two."""
    strongest = sorted(effects.pairs, key=lambda pair: -(pair.share or 0.0))
    return tuple(strongest[:_MOST_PAIRS])


_Row = tuple[str, Estimate | None]


def _list_rows(groups: Sequence[ComparedGroup]) -> list[_Row]:
    """Return label and speedup of every setup but the baselines, and the name of every group."""
    rows: list[_Row] = []
    for group in groups:
        if group.name:
            rows.append((group.name, None))
        rows += [(setup.name, setup.effects["speedup"].value) for setup in group.setups[1:]]
    return rows


def _draw_effects(axes: Axes, rows: Sequence[_Row], baseline: str) -> None:
    shown = rows[:_MOST_ROWS]
    axes.axvline(1.0, color=MUTED, linewidth=0.9)
    for place, (_, speedup) in enumerate(shown):
        if speedup is not None:
            _draw_speedup(axes, place, speedup)
    axes.set_xscale("log")
    set_log_ticks(axes.xaxis, *axes.get_xlim())
    axes.set_yticks(range(len(shown)), [sanitize_label(name, 44) for name, _ in shown])
    for label, (_, speedup) in zip(axes.get_yticklabels(), shown, strict=True):
        label.set_fontweight("normal" if speedup is not None else "bold")
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    has_interval = any(speedup is not None and speedup.low is not None for _, speedup in shown)
    axes.set_xlabel(
        f"times as fast as {sanitize_label(baseline, 50)}"
        f"{', with 95 % interval' if has_interval else ''} (logarithmic)"
    )
    axes.grid(axis="x")
    left_out = f" ({len(shown)} of {len(rows)} rows)" if len(shown) < len(rows) else ""
    axes.set_title(f"Speedup of each setup{left_out}")


def _draw_speedup(axes: Axes, place: int, speedup: Estimate) -> None:
    """Draw a mean and its interval; it is colored if the interval excludes 1."""
    if speedup.low is None or speedup.high is None:
        axes.plot(
            [speedup.mean], [place], "o", color=palette.EDGE, markerfacecolor="white", markersize=5
        )
        return
    ends = [speedup.low, speedup.high]
    differs = ends[0] > 1 or ends[1] < 1
    color = palette.COMPUTE.color if differs else palette.OTHER.color
    axes.plot(ends, [place, place], color=color, linewidth=2.2, solid_capstyle="butt")
    axes.plot([speedup.mean], [place], "o", color=color, markersize=5)


def _draw_interaction(
    axes: Axes, pair: AxisEffect, names: dict[str, str], measure: SpeedMeasure
) -> None:
    rows = list(dict.fromkeys(each.values[0] for each in pair.values))
    columns = list(dict.fromkeys(each.values[1] for each in pair.values))
    lines, places = (0, 1) if len(rows) <= len(columns) else (1, 0)
    series, ticks = (rows, columns) if lines == 0 else (columns, rows)
    shown = series[:_MOST_LINES]
    for number, value in enumerate(shown):
        points = [each for each in pair.values if each.values[lines] == value]
        points.sort(key=lambda each: ticks.index(each.values[places]))
        _draw_line(axes, points, [ticks.index(each.values[places]) for each in points], number)
        axes.lines[-1].set_label(sanitize_label(format_value(value)))
    axes.set_yscale("log")
    set_log_ticks(axes.yaxis, *axes.get_ylim())
    axes.set_xticks(range(len(ticks)), [sanitize_label(format_value(each), 16) for each in ticks])
    axes.set_xlim(-0.3, len(ticks) - 0.7)
    axes.set_xlabel(sanitize_label(names[pair.axes[places]]))
    axes.set_ylabel(f"{measure.name}, {measure.unit} (logarithmic)")
    axes.grid(axis="y")
    left_out = f" ({len(shown)} of {len(series)})" if len(shown) < len(series) else ""
    axes.legend(title=f"{sanitize_label(names[pair.axes[lines]])}{left_out}", ncols=2)
    axes.set_title(" × ".join(sanitize_label(names[axis]) for axis in pair.axes))


def _draw_line(
    axes: Axes, points: Sequence[ValueEffect], places: Sequence[int], number: int
) -> None:
    color = palette.TIERS[number % len(palette.TIERS)]
    for place, point in zip(places, points, strict=True):
        low, high = point.mean.low, point.mean.high
        if low is not None and high is not None:
            axes.plot([place, place], [low, high], color=color, linewidth=1.1)
    axes.plot(
        places,
        [point.mean.mean for point in points],
        color=color,
        linestyle=palette.LINES[number % len(palette.LINES)],
        marker=_MARKS[number % len(_MARKS)],
        markersize=4.5,
    )
