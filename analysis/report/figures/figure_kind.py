"""Kind of figure: its name, its drawing function, and its caption."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.tables.load_run import RunData

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def is_always_available(_run: RunData, _analysis: AnalysisResult) -> bool:
    """Return True, since every run has this figure."""
    return True


Analysis = TypeVar("Analysis", AnalysisResult, None)


@dataclass(frozen=True)
class FigureTitle:
    """Names of a figure.

    Attributes:
        name: stem of its files.
        title: heading in the report.
        description: alternative text for readers who cannot see it.
    """

    name: str
    title: str
    description: str


@dataclass(frozen=True)
class FigureKind(FigureTitle, Generic[Analysis]):
    """One figure of the registry; its functions get None if the run is not analyzed.

    Attributes:
        draw: function that draws it at a width in inches.
        caption: function that returns a sentence about its content.
        is_available: function that returns True if a run has data for it.
    """

    draw: Callable[[RunData, Analysis, float], Figure]
    caption: Callable[[RunData, Analysis], str]
    is_available: Callable[[RunData, Analysis], bool]


def has_common_steps(_run: RunData, analysis: AnalysisResult) -> bool:
    """Return True if ranks can be compared step by step, which requires lockstep."""
    return analysis.common_steps


def format_host(analysis: AnalysisResult, rank: int) -> str:
    """Return the host of a rank, or the rank's number."""
    host = analysis.hosts[rank]
    return host.host or f"rank {host.rank}"
