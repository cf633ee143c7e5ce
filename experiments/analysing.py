"""From the tables of a run folder to everything that is said of it: findings, answer, figures, report, timeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.errors import RunFolderError

if TYPE_CHECKING:
    from laggard.analysis.findings import Analysis
    from laggard.analysis.load import Run


def analyse_folder(folder: Path) -> Analysis | None:
    """Analyse a run folder and write what is said of it into it (see `publish`).

    Returns:
        The analysis; None where no step was finished, of which the report then tells.

    Raises:
        RunFolderError: it is no run folder.
    """
    from laggard.analysis.load import load_run

    run = load_run(folder)
    analysis = find(run)
    publish(run, analysis, folder)
    return analysis


def find(run: Run) -> Analysis | None:
    """The analysis of a run; None where no step was finished by every rank."""
    from laggard.analysis.findings import analyse
    from laggard.analysis.own_pace.analyse import analyse_own_pace

    try:
        return analyse(run) if run.lockstep else analyse_own_pace(run)
    except RunFolderError:
        if run.record is None or run.record.status == "done":
            raise
        return None


def publish(run: Run, analysis: Analysis | None, folder: Path) -> None:
    """Write `stragglers.json`, `answer.json`, `report.html`, `figures/` and the timeline."""
    from laggard.analysis.answer import answer
    from laggard.analysis.perfetto import write_perfetto
    from laggard.analysis.report import write_report

    findings = [finding.model_dump(mode="json") for finding in analysis.findings] if analysis else []
    _write_json(folder / "stragglers.json", findings)
    _write_json(folder / "answer.json", list(answer(run, analysis)))
    write_report(run, analysis, folder)
    write_perfetto(run, folder / "trace.perfetto.json.gz")


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")
