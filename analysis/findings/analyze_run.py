"""The analysis of any run, by the replay that fits how its ranks trained."""

from __future__ import annotations

from laggard.analysis.findings.analysis_result import AnalysisResult, analyze_lockstep
from laggard.analysis.findings.analyze_asynchronous import analyze_asynchronous
from laggard.analysis.tables.load_run import RunData


def analyze_run(run: RunData) -> AnalysisResult:
    """Finds a run's stragglers and prices them, whether its ranks took the same steps or each its
    own.

    Raises:
        RunFolderError: there is no step to analyze.
    """
    return analyze_lockstep(run) if run.is_lockstep else analyze_asynchronous(run)
