"""Table of the ranks for the report: who waited, who was waited for, and how fast each was."""

from __future__ import annotations

from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.findings.rank_summary import RankValues, summarize_ranks
from laggard.analysis.report.run_setup import ReportTable
from laggard.analysis.tables.load_run import RunData
from laggard.core.text.text_format import format_percent, format_seconds

MOST_RANKS = 256


def build_ranks_table(run: RunData, analysis: AnalysisResult) -> ReportTable:
    """Return the table of the first ranks, at most 256, in rank order."""
    rows = [_format_row(values) for values in summarize_ranks(run, analysis)[:MOST_RANKS]]
    return ReportTable(
        "Waiting and speed of every rank",
        (
            "Rank",
            "Host",
            "Collectives it was last at",
            "Others waited for it",
            "It waited",
            "Overlapped communication",
            "Compute speed, of the fastest",
            "At the end, of its best",
        ),
        tuple(rows),
    )


def _format_row(values: RankValues) -> tuple[str, ...]:
    last, caused_s = values["times_last"], values["caused_wait_s"]
    communicated_s, overlapped_s = (
        float(values[name] or 0.0) for name in ("communicated_s", "overlapped_s")
    )
    return (
        str(values["rank"]),
        str(values["host"]),
        "-" if last is None else str(last),
        "-" if caused_s is None else format_seconds(float(caused_s)),
        format_seconds(float(values["wait_s"] or 0.0)),
        "-" if communicated_s <= 0 else format_percent(overlapped_s / communicated_s),
        _format_score(values["relative_score"]),
        _format_score(values["individual_score"]),
    )


def _format_score(score: float | str | None) -> str:
    return "-" if score is None else format_percent(float(score))
