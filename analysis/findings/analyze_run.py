"""Analysis of any run, with the replay for its synchronization mode."""

from __future__ import annotations

from laggard.analysis.findings.analysis_result import AnalysisResult, analyze_lockstep
from laggard.analysis.findings.analyze_asynchronous import analyze_asynchronous
from laggard.analysis.tables.load_run import RunData


def analyze_run(run: RunData) -> AnalysisResult:
    """Find a run's stragglers and their costs, for lockstep and asynchronous runs.

    Raises:
        RunFolderError: there is no step to analyze.

    Examples:
        >>> from laggard.analysis.tables.load_run import load_run
        >>> run = load_run(Path("runs/quickstart/latest"))
        >>> analysis = analyze_run(run)
        >>> worst = analysis.findings[0]
        >>> worst.family, worst.kind, round(worst.slowdown)
        ('compute', 'deterministic', 4)
    """
    return analyze_lockstep(run) if run.is_lockstep else analyze_asynchronous(run)
