"""A finished run and the list of runs, as text for people and documents for machines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.core.files.input_files import JsonDocument, read_json
from laggard.core.run_schema import ALARMS_FILE, RunRecord
from laggard.run_folder.analyze import REFERENCE_FILE, SUMMARY_FILE
from laggard.run_folder.store import RECORD_FILE, load_record

if TYPE_CHECKING:
    from laggard.analysis.findings.analysis_result import AnalysisResult
    from laggard.analysis.tables.load_run import RunData


def build_result_document(record: RunRecord, folder: Path) -> dict[str, JsonDocument]:
    """Return `run.json` with the findings, the answer and the paths of folder and report."""
    document: dict[str, JsonDocument] = record.model_dump(mode="json")
    document["folder"] = str(folder)
    document["report"] = str(folder / "report.html") if (folder / "report.html").exists() else None
    document["stragglers"] = _read_json(folder / "stragglers.json")
    document["alarms"] = _load_alarms(folder)
    document["fidelity"] = _read_json(folder / "fidelity.json")
    document["answer"] = _read_answer(folder)
    return {**document, **_read_summary(folder)}


def format_run_result(record: RunRecord, folder: Path) -> str:
    """Format the answer, the outcome and the path of the report."""
    lines = [f"{record.scenario} {record.id}: {record.status}"]
    lines += [f"  {sentence}" for sentence in _read_answer(folder)]
    if record.outcome is not None:
        o = record.outcome
        accuracy_text = f", accuracy {100 * o.accuracy:.1f} %" if o.accuracy is not None else ""
        across = f" ({o.bytes_across_tiers / 1e6:.0f} across tiers)" if o.bytes_across_tiers else ""
        lines.append(
            f"  {o.steps} steps in {o.makespan_s:.1f} s{accuracy_text}, {o.samples_per_s:.0f}"
            f" samples/s, {o.bytes_sent / 1e6:.0f} MB sent{across}, fairness {o.fairness:.2f}"
            + (f", price {o.cost:.3g}" if o.cost is not None else "")
        )
    lines += [f"  warning: {warning}" for warning in record.warnings]
    if record.error:
        lines.append(f"  {record.error}")
    report = folder / "report.html"
    lines.append(f"report: {report}" if report.exists() else f"run folder: {folder}")
    if (
        record.settings is not None
        and not record.settings.report
        and not report.exists()
        and (folder / "stragglers.json").exists()
    ):
        lines.append(f"`laggard report {folder}` draws the report that --no-report left out")
    return "\n".join(lines)


def build_analysis_document(folder: Path) -> dict[str, JsonDocument]:
    """Return the findings of a trace and the paths of its folder and report.

    A run that was killed early may have no record.
    """
    if not (folder / RECORD_FILE).exists():
        found = {
            "stragglers": _read_json(folder / "stragglers.json"),
            "answer": _read_answer(folder),
        }
        return {
            **found,
            **_read_summary(folder),
            "folder": str(folder),
            "report": str(folder / "report.html"),
        }
    document = build_result_document(load_record(folder), folder)
    reference = _read_json(folder / REFERENCE_FILE)
    return document if reference is None else {**document, "reference_bytedance": reference}


def format_analysis(folder: Path) -> str:
    """Format the answer, the notes on data missing from the trace, and the path of the report."""
    if not (folder / RECORD_FILE).exists():
        answer = [f"  {sentence}" for sentence in _read_answer(folder)]
        return "\n".join([f"{folder.name}:", *answer, f"report: {folder / 'report.html'}"])
    record = load_record(folder)
    notes = record.origin.notes if record.origin is not None else ()
    lines = [format_run_result(record, folder), *(f"note: {note}" for note in notes)]
    return "\n".join([*lines, *_format_reference(_read_json(folder / REFERENCE_FILE))])


def build_summary_document(
    run: RunData, analysis: AnalysisResult | None
) -> dict[str, JsonDocument]:
    """Return the findings and the answer of an analysis that was not written to a folder."""
    from laggard.analysis.findings.rank_summary import build_summary

    document: dict[str, JsonDocument] = (
        {} if run.record is None else run.record.model_dump(mode="json")
    )
    findings = () if analysis is None else analysis.findings
    document["stragglers"] = [finding.model_dump(mode="json") for finding in findings]
    document["answer"] = list(_format_answer(run, analysis))
    if analysis is not None:
        document |= build_summary(run, analysis)
    return {**document, "folder": None, "report": None}


def format_summary(run: RunData, analysis: AnalysisResult | None) -> str:
    """Format the answer of an analysis that was not written to a folder, and the trace's notes."""
    record = run.record
    title = run.folder.name if record is None else f"{record.scenario} {record.id}: {record.status}"
    notes = record.origin.notes if record is not None and record.origin is not None else ()
    answer = (f"  {sentence}" for sentence in _format_answer(run, analysis))
    return "\n".join([title, *answer, *(f"note: {note}" for note in notes)])


def _format_answer(run: RunData, analysis: AnalysisResult | None) -> Sequence[str]:
    from laggard.analysis.findings.answer import format_answer

    return format_answer(run, analysis)


def _format_reference(reference: JsonDocument) -> list[str]:
    if not isinstance(reference, dict):
        return []
    types, workers = reference.get("s_t"), reference.get("s_w")
    if not isinstance(types, dict) or not isinstance(workers, list) or not types or not workers:
        return []
    by_type = sorted(((float(str(s)), name) for name, s in types.items()), reverse=True)
    by_worker = sorted(
        (
            (float(str(each.get("s_w"))), f"{each.get('dp_rank')}/{each.get('stage')}")
            for each in workers
            if isinstance(each, dict)
        ),
        reverse=True,
    )
    (type_s, slowest_type), (worker_s, slowest_worker) = by_type[0], by_worker[0]
    total = f"bytedance reference: S {float(str(reference['s'])):.4f}"
    most = (
        f"slowest operation type {slowest_type} (S_t {type_s:.4f}), slowest worker (dp_rank/stage)"
        f" {slowest_worker} (S_w {worker_s:.4f})"
    )
    return [f"{total}; {most}; all values in {REFERENCE_FILE}"]


def build_run_list(records: Sequence[tuple[RunRecord, Path]]) -> list[JsonDocument]:
    """Return one JSON object per run."""
    return [{**record.model_dump(mode="json"), "folder": str(folder)} for record, folder in records]


def format_run_list(records: Sequence[tuple[RunRecord, Path]]) -> str:
    """Format one line per run."""
    if not records:
        return "no runs found: `laggard run experiments/quickstart` creates one"
    rows = [_format_row(record, folder) for record, folder in records]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _format_row(record: RunRecord, folder: Path) -> tuple[str, ...]:
    outcome = record.outcome
    makespan = f"{outcome.makespan_s:.1f} s" if outcome else "-"
    accuracy = (
        f"{100 * outcome.accuracy:.1f} %" if outcome and outcome.accuracy is not None else "-"
    )
    return (
        record.started,
        record.scenario,
        record.status,
        makespan,
        accuracy,
        _format_unreleased_jobs(record),
        str(folder),
    )


def _format_unreleased_jobs(record: RunRecord) -> str:
    """Format the nodes that a run still holds on a testbed."""
    nodes = sum(job.nodes for job in record.jobs if not job.released)
    jobs = [f"{job.site}:{job.job_id or '?'}" for job in record.jobs if not job.released]
    if not jobs:
        return ""
    fix = "" if record.status == "running" else f", laggard destroy {record.id}"
    return f"holds {nodes} nodes ({', '.join(jobs)}){fix}"


def _read_summary(folder: Path) -> dict[str, JsonDocument]:
    summary = _read_json(folder / SUMMARY_FILE)
    return summary if isinstance(summary, dict) else {}


def _read_answer(folder: Path) -> list[JsonDocument]:
    answer = _read_json(folder / "answer.json")
    return answer if isinstance(answer, list) else []


def _load_alarms(folder: Path) -> list[JsonDocument]:
    from laggard.analysis.tables.load_run import read_alarms

    return [alarm.model_dump(mode="json") for alarm in read_alarms(folder / ALARMS_FILE)]


def _read_json(path: Path) -> JsonDocument:
    if not path.exists():
        return None
    return read_json(path)
