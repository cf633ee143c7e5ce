"""Analysis of a run folder: findings, answer, figures, report and timeline from its tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from laggard.core.errors import InputError, RunFolderError
from laggard.core.files.output_files import write_json

if TYPE_CHECKING:
    from laggard.analysis.findings.analysis_result import AnalysisResult
    from laggard.analysis.formats.import_run.trace_format import TraceFormat
    from laggard.analysis.tables.load_run import RunData

# The functions import the analysis themselves, so that commands without one start quickly.
SUMMARY_FILE = "summary.json"
REFERENCE_FILE = "reference_bytedance.json"


def analyze_folder(folder: Path) -> AnalysisResult | None:
    """Analyze a run folder and write the results into it (see `write_analysis`).

    Returns:
        The analysis; None if no step was finished, which the report then states.

    Raises:
        RunFolderError: the folder is not a run folder.
    """
    from laggard.analysis.tables.load_run import load_run

    run = load_run(folder)
    analysis = analyze_if_trained(run)
    write_analysis(run, analysis, folder)
    return analysis


def analyze_path(path: Path, out: Path | None, runs: Path, *, reference: bool = False) -> Path:
    """Analyze a run folder or a trace of another tool, and write the results into a run folder.

    Args:
        path: a run folder, a ByteDance trace, or torch.profiler's trace of one or all ranks.
        out: folder to write. If None, results for a run folder are written into it, and a trace
            becomes `runs/<name>/<name>-<format>`.
        runs: folder of all run folders.
        reference: whether to write ByteDance's slowdowns too (`reference_bytedance.json`).

    Returns:
        The folder with the results.

    Raises:
        InputError: the input is none of these or damaged, or `out` contains something else.
    """
    from laggard.analysis.formats.registry import RUN_FOLDER, detect_format
    from laggard.analysis.tables.write_run import write_run

    trace_format = detect_format(path)
    run = trace_format.read(path)
    folder = (
        out.resolve()
        if out is not None
        else path.resolve()
        if trace_format is RUN_FOLDER
        else _choose_folder(run, runs)
    )
    analysis = analyze_if_trained(run)
    try:
        if trace_format is not RUN_FOLDER or folder.resolve() != path.resolve():
            _require_replaceable(folder)
            write_run(run, folder)
        write_analysis(run, analysis, folder)
    except OSError as error:
        raise InputError(
            f"{error.filename or folder}: {error.strerror} — choose another folder with --out"
        ) from error
    if reference:
        _write_reference(run, path, trace_format, folder)
    return folder


def analyze_in_memory(path: Path) -> tuple[RunData, AnalysisResult | None]:
    """Analyze a run folder or a trace of another tool, and write nothing.

    Args:
        path: a run folder, or a trace in any of the formats that are read.

    Returns:
        The run, and its analysis; None if no step was finished by every rank.

    Raises:
        InputError: the input is none of these, or damaged.
    """
    from laggard.analysis.formats.registry import open_run

    run = open_run(path)
    return run, analyze_if_trained(run)


def _write_reference(run: RunData, path: Path, trace_format: TraceFormat, folder: Path) -> None:
    from laggard.analysis.formats.bytedance.from_run import run_to_operations
    from laggard.analysis.formats.bytedance.parquet_file import read_operations
    from laggard.analysis.formats.bytedance.trace_format import BYTEDANCE
    from laggard.analysis.replay.bytedance.slowdowns import compute_slowdowns

    operations = read_operations(path) if trace_format is BYTEDANCE else run_to_operations(run)
    write_json(folder / REFERENCE_FILE, compute_slowdowns(operations).to_document())


def _choose_folder(run: RunData, runs: Path) -> Path:
    assert run.record is not None
    return runs / run.record.scenario / run.record.id


def _require_replaceable(folder: Path) -> None:
    """Require that the folder is missing, empty, or the result of an earlier trace analysis."""
    from laggard.run_folder.store import RECORD_FILE, load_record

    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if (folder / RECORD_FILE).is_file() and load_record(folder).origin is not None:
        return
    raise InputError(
        f"{folder}: this folder exists and is not the result of an earlier analysis of a trace, so"
        " it is not overwritten — choose another folder with --out"
    )


def analyze_if_trained(run: RunData) -> AnalysisResult | None:
    """Analyze a run; return None if no step was finished by every rank, or nothing is trained.

    Raises:
        RunFolderError: a run with the status `done` (or without a record) cannot be analyzed.
    """
    from laggard.analysis.findings.analyze_run import analyze_run

    if run.record is not None and not run.record.trains:
        return None
    try:
        return analyze_run(run)
    except RunFolderError:
        # A run that failed early may have no complete step. A finished one must have some.
        if run.record is None or run.record.status == "done":
            raise
        return None


def write_analysis(
    run: RunData, analysis: AnalysisResult | None, folder: Path, *, report: bool = True
) -> None:
    """Write the findings, their sentences and numbers, the timeline, and the report with figures.

    The report can be left out, since drawing its figures takes longer than all else.
    """
    from laggard.analysis.findings.answer import format_answer
    from laggard.analysis.findings.rank_summary import build_summary
    from laggard.analysis.formats.export.perfetto import write_perfetto
    from laggard.analysis.report import write_report

    findings = (
        [finding.model_dump(mode="json") for finding in analysis.findings] if analysis else []
    )
    write_json(folder / "stragglers.json", findings)
    write_json(folder / "answer.json", list(format_answer(run, analysis)))
    write_json(folder / SUMMARY_FILE, build_summary(run, analysis) if analysis else {})
    if report:
        write_report(run, analysis, folder)
    write_perfetto(run, folder / "trace.perfetto.json.gz")
