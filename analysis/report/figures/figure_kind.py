"""Kind of figure: its name, its drawing function, and its caption."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.tables.load_run import RunData

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def is_always_available(_run: RunData, _analysis: AnalysisResult) -> bool:
    """Return True, since every run has this figure."""
    return True


@dataclass(frozen=True)
class FigureKind:
    """One figure of the registry.

    Attributes:
        name: stem of its files.
        title: heading in the report.
        description: alternative text for readers who cannot see it.
        draw: function that draws it at a width in inches.
        caption: function that returns a sentence about its content.
        is_available: function that returns True if a run has data for it.
    """

    name: str
    title: str
    description: str
    draw: Callable[[RunData, AnalysisResult, float], Figure]
    caption: Callable[[RunData, AnalysisResult], str]
    is_available: Callable[[RunData, AnalysisResult], bool]


def has_common_steps(_run: RunData, analysis: AnalysisResult) -> bool:
    """Return True if ranks can be compared step by step, which requires lockstep."""
    return analysis.common_steps


def format_host(analysis: AnalysisResult, rank: int) -> str:
    """Return the host of a rank, or the rank's number."""
    host = analysis.hosts[rank]
    return host.host or f"rank {host.rank}"
