"""Tokens of the clients of a federated training over its rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.findings.token_result import (
    accumulate_balances,
    format_tokens,
    summarize_ledger,
)
from laggard.analysis.report.figures.figure_kind import FigureKind
from laggard.analysis.report.style import palette
from laggard.analysis.report.style.canvas import MUTED, is_narrow, new_figure, set_title
from laggard.analysis.report.style.labels import format_rank_labels
from laggard.analysis.tables.load_run import RunData

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_NAMED = 6
"""Clients up to which each has a color and a name; of more, those with the extreme balances."""


def draw_tokens(run: RunData, _analysis: AnalysisResult, width_in: float) -> Figure:
    """Draw the balance of each client after each round.

    Args:
        run: run with a ledger.
        _analysis: not used.
        width_in: width of the figure, in inches.

    Returns:
        The figure, drawn under the caller's style.
    """
    rounds, balances = accumulate_balances(run.ledger, run.world_size)
    order = np.argsort(-balances[-1], kind="stable").tolist()
    half = _MOST_NAMED // 2
    named = order if len(order) <= _MOST_NAMED else [*order[:half], *order[-half:]]
    labels = dict(zip(named, format_rank_labels([run.hosts[each] for each in named]), strict=True))
    figure = new_figure(width_in, 4.4 if is_narrow(width_in) else 3.6)
    axes = figure.subplots()
    for rank in order:
        number = named.index(rank) if rank in labels else None
        axes.step(
            rounds + 1,
            balances[:, rank],
            where="post",
            color=MUTED if number is None else palette.TIERS[number % len(palette.TIERS)],
            linewidth=0.6 if number is None else 1.8,
            alpha=0.5 if number is None else 1.0,
            label=labels.get(rank),
        )
    axes.axhline(0, color=MUTED, linewidth=0.8)
    axes.set_xlabel("round")
    axes.set_ylabel("tokens")
    axes.margins(x=0.01)
    axes.grid()
    set_title(axes, "Tokens of the clients", width_in)
    figure.legend(loc="outside lower center", ncols=1 if is_narrow(width_in) else 3)
    return figure


def has_ledger(run: RunData, _analysis: AnalysisResult) -> bool:
    """Return True if a run has a ledger."""
    return bool(run.ledger)


def write_tokens_caption(run: RunData, _analysis: AnalysisResult) -> str:
    """Say who gained and who lost most."""
    return format_tokens(summarize_ledger(run.ledger, run.world_size), run.hosts)[0]


FIGURE = FigureKind(
    "tokens",
    "Tokens of the clients",
    "Line chart: the balance of each client in tokens after each round; those with the largest and"
    " smallest balances are named.",
    draw_tokens,
    write_tokens_caption,
    has_ledger,
)
