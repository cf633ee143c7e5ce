"""Figure of stalls: one bar for each tier, and for each host if there are few."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from laggard.analysis.report.style import palette
from laggard.analysis.report.style.canvas import INK, WIDE_IN, house_style, new_figure
from laggard.analysis.report.style.figure_file import save_figure
from laggard.analysis.report.style.labels import row_height_in, sanitize_label
from laggard.analysis.stalls.stall_estimates import STALL_KINDS, Stalls
from laggard.stalls.measure_stalls import MeasuredStalls

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_BARS = 24
_MS_PER_S = 1e3
_PAINTS = {
    "compute": palette.COMPUTE,
    "prep": palette.PREP,
    "fetch": palette.FETCH,
    "interconnect": palette.INTERCONNECT,
    "network": palette.NETWORK,
    "wait": palette.WAIT,
}


def save_stall_figure(measured: MeasuredStalls, path: Path) -> None:
    """Draw the parts of a step as stacked bars, and write them to an SVG or PNG file.

    Args:
        measured: the stalls.
        path: file to write; its suffix is `.svg` or `.png`.

    Raises:
        InputError: the suffix is another one.
        OSError: the file cannot be written.
    """
    shown: Mapping[str, Stalls] = {
        **measured.tiers,
        **(measured.hosts if len(measured.hosts) <= _MOST_BARS else {}),
    }
    with house_style():
        figure = new_figure(WIDE_IN, 1.6 + row_height_in(len(shown)) * len(shown))
        axes = figure.add_subplot()
        _draw_bars(axes, shown)
        axes.set_xlabel("ms per sample, with 95 % intervals of each part")
        axes.set_title(f"{sanitize_label(measured.scenario.name)}: stalls of a step")
        figure.legend(loc="outside lower center", ncols=6)
    save_figure(figure, path)


def _draw_bars(axes: Axes, shown: Mapping[str, Stalls]) -> None:
    places, left = np.arange(len(shown)), np.zeros(len(shown))
    for number, part in enumerate(("compute", *STALL_KINDS)):
        estimates = [
            each.compute_s if number == 0 else each.stalls_s[STALL_KINDS[number - 1]]
            for each in shown.values()
        ]
        # A difference of noise may be negative, and a bar is not.
        width = np.array([max(each.mean, 0.0) * _MS_PER_S for each in estimates])
        paint = _PAINTS[part]
        axes.barh(
            places,
            width,
            left=left,
            height=0.74,
            color=paint.color,
            hatch=paint.hatch or None,
            edgecolor=palette.EDGE if paint.hatch else "white",
            linewidth=0.4,
            label=paint.label,
        )
        for place, each, begin in zip(places, estimates, left, strict=True):
            if each.low is not None and each.high is not None and each.mean > 0:
                ends = [begin + end * _MS_PER_S for end in (each.low, each.high)]
                axes.plot(ends, [place, place], color=INK, linewidth=1.0)
        left = left + width
    axes.set_yticks(places, [sanitize_label(name, 30) for name in shown])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.grid(axis="x")
