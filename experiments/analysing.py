"""From the tables of a run folder to everything that is said of it: findings, answer, figures,
report, timeline.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.errors import InputError, RunFolderError

if TYPE_CHECKING:
    from laggard.analysis.findings import Analysis
    from laggard.analysis.formats.recognise import Format
    from laggard.analysis.load import Run

REFERENCE = "reference_bytedance.json"


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


def analyse_path(path: Path, out: Path | None, runs: Path, *, reference: bool = False) -> Path:
    """Analyse a run folder, or a trace of another tool, and write what is said of it into a run
    folder.

    Args:
        path: a run folder, a ByteDance trace, or torch.profiler's of one or all ranks.
        out: the folder to write; without it, a run folder is written into, and a trace becomes
            `runs/<name>/<name>-<format>`.
        runs: where run folders are kept.
        reference: whether to write ByteDance's slowdowns too (`reference_bytedance.json`).

    Returns:
        The folder.

    Raises:
        InputError: it is none of these, or not what it says, or `out` holds something else.
    """
    from laggard.analysis.formats.recognise import Format, open_run, recognise
    from laggard.analysis.store import write_run

    known = recognise(path)
    run = open_run(path)
    folder = out or (path.resolve() if known is Format.RUN else _place(run, runs))
    analysis = find(run)
    try:
        if known is not Format.RUN or folder.resolve() != path.resolve():
            _refuse_to_replace(folder)
            write_run(run, folder)
        publish(run, analysis, folder)
    except OSError as error:
        raise InputError(
            f"{error.filename or folder}: {error.strerror} — choose another folder with --out"
        ) from error
    if reference:
        _write_reference(run, path, known, folder)
    return folder


def _write_reference(run: Run, path: Path, known: Format, folder: Path) -> None:
    from laggard.analysis.formats.bytedance import read_operations
    from laggard.analysis.formats.recognise import Format
    from laggard.analysis.formats.run_to_operations import operations_of_run
    from laggard.analysis.reference_bytedance import slowdowns

    operations = read_operations(path) if known is Format.BYTEDANCE else operations_of_run(run)
    _write_json(folder / REFERENCE, slowdowns(operations).document())


def _place(run: Run, runs: Path) -> Path:
    assert run.record is not None
    return runs / run.record.scenario / run.record.id


def _refuse_to_replace(folder: Path) -> None:
    """Only what an earlier analysis of a trace left is replaced."""
    from laggard.experiments.run_store import RECORD, load_record

    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if (folder / RECORD).is_file() and load_record(folder).origin is not None:
        return
    raise InputError(
        f"{folder}: something else is there already — choose another folder with --out"
    )


def find(run: Run) -> Analysis | None:
    """The analysis of a run; None where no step was finished by every rank."""
    from laggard.analysis.analyse_run import analyse_run

    try:
        return analyse_run(run)
    except RunFolderError:
        if run.record is None or run.record.status == "done":
            raise
        return None


def publish(run: Run, analysis: Analysis | None, folder: Path) -> None:
    """Write `stragglers.json`, `answer.json`, `report.html`, `figures/` and the timeline."""
    from laggard.analysis.answer import answer
    from laggard.analysis.perfetto import write_perfetto
    from laggard.analysis.report import write_report

    findings = (
        [finding.model_dump(mode="json") for finding in analysis.findings] if analysis else []
    )
    _write_json(folder / "stragglers.json", findings)
    _write_json(folder / "answer.json", list(answer(run, analysis)))
    write_report(run, analysis, folder)
    write_perfetto(run, folder / "trace.perfetto.json.gz")


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")
