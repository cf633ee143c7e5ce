"""The analysis of any run, by the replay that fits how its ranks trained."""

from __future__ import annotations

from laggard.analysis.findings import Analysis, analyse
from laggard.analysis.load import Run
from laggard.analysis.own_pace.analyse import analyse_own_pace


def analyse_run(run: Run) -> Analysis:
    """Finds a run's stragglers and prices them, whether its ranks took the same steps or each its
    own.

    Raises:
        RunFolderError: there is no step to analyse.
    """
    return analyse(run) if run.lockstep else analyse_own_pace(run)
