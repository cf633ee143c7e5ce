"""One kind of figure: its name, how it is drawn, and the sentence that says what it shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.tables.load_run import RunData

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def is_always_available(_run: RunData, _analysis: AnalysisResult) -> bool:
    """Return true: every run has this figure."""
    return True


@dataclass(frozen=True)
class FigureKind:
    """One figure of the catalogue.

    Attributes:
        name: stem of its files.
        title: its heading in the report.
        description: what kind of picture it is, for those who cannot see it.
        draw: draws it at a width in inches.
        caption: what to see in it, in a sentence.
        is_available: whether it says something of a run.
    """

    name: str
    title: str
    description: str
    draw: Callable[[RunData, AnalysisResult, float], Figure]
    caption: Callable[[RunData, AnalysisResult], str]
    is_available: Callable[[RunData, AnalysisResult], bool]


def has_common_steps(_run: RunData, analysis: AnalysisResult) -> bool:
    """Whether ranks can be compared step by step, which takes ranks in lockstep."""
    return analysis.common_steps


def format_host(analysis: AnalysisResult, rank: int) -> str:
    """Return the host of a rank, or the rank's number."""
    host = analysis.hosts[rank]
    return host.host or f"rank {host.rank}"
