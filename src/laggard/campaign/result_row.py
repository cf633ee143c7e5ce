"""Row of a campaign's results table, from the document of one run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path

from laggard.campaign.campaign_state import Scalar
from laggard.core.campaign_columns import (
    ANALYSIS_COLUMNS,
    FEDERATED_COLUMNS,
    OUTCOME_COLUMNS,
    RUN_COLUMNS,
    TASK_COLUMNS,
)
from laggard.core.errors import InputError

_SPLIT: Mapping[str, tuple[str, ...]] = {
    "compute_s": ("compute_s",),
    "communication_s": ("interconnect_s", "network_s"),
    "wait_s": ("wait_s",),
    "fetch_s": ("fetch_s", "prep_s"),
    "other_s": ("idle_s", "other_s"),
}
"""Columns, and the parts of a rank's time split that they sum."""


def build_row(document: Mapping[str, object], elapsed_s: float) -> dict[str, Scalar]:
    """Return the row of a run from the document that `laggard run --json` writes.

    Args:
        document: the document; what it lacks is None in the row.
        elapsed_s: real seconds that the run took.
    """
    row: dict[str, Scalar] = dict.fromkeys((*RUN_COLUMNS, *OUTCOME_COLUMNS, *ANALYSIS_COLUMNS))
    row |= {
        key: _scalar(document.get(key))
        for key in ("status", "folder", "started", "dilation", "git")
    }
    row |= {"run": _scalar(document.get("id")), "elapsed_s": round(elapsed_s, 3)}
    row |= {"reason": _scalar(document.get("error")), "links": _scalar(document.get("backend"))}
    versions, outcome = document.get("versions"), document.get("outcome")
    if isinstance(versions, dict):
        row["versions_laggard"] = _scalar(versions.get("laggard"))
    if isinstance(outcome, dict):
        known = (*OUTCOME_COLUMNS, "bytes_across_tiers")
        row |= {key: _scalar(outcome.get(key)) for key in known if key in outcome}
    columns = document.get("columns")
    if isinstance(columns, dict):
        row |= {key: _scalar(columns[key]) for key in TASK_COLUMNS if key in columns}
    return row | _summarize_checks(document) | _summarize_analysis(document)


def _summarize_checks(document: Mapping[str, object]) -> dict[str, Scalar]:
    checks = document.get("fidelity")
    if not isinstance(checks, list):
        return {"checks": None, "failed_checks": None}
    failed = [each for each in checks if isinstance(each, dict) and each.get("ok") is False]
    return {"checks": len(checks), "failed_checks": len(failed)}


def _summarize_analysis(document: Mapping[str, object]) -> dict[str, Scalar]:
    row: dict[str, Scalar] = {}
    findings, answer = document.get("stragglers"), document.get("answer")
    if isinstance(findings, list):
        row["stragglers"] = len(
            [each for each in findings if isinstance(each, dict) and not each.get("masked")]
        )
    if isinstance(answer, list) and answer:
        row["answer"] = _scalar(answer[0])
    lost_s, makespan_s = document.get("lost_s"), document.get("makespan_s")
    if isinstance(lost_s, int | float) and isinstance(makespan_s, int | float) and makespan_s > 0:
        row |= {"lost_s": lost_s, "lost_share": lost_s / makespan_s}
    stream = document.get("stream")
    if isinstance(stream, dict):
        row["forgetting"] = _scalar(stream.get("forgetting"))
    federated = document.get("federated")
    if isinstance(federated, dict):
        row |= {name: _scalar(federated.get(name)) for name in FEDERATED_COLUMNS}
    ranks = document.get("ranks")
    if isinstance(ranks, list) and ranks:
        for column, parts in _SPLIT.items():
            sums = [_sum_parts(rank, parts) for rank in ranks if isinstance(rank, dict)]
            row[column] = statistics.fmean(sums) if sums else None
    loss = _read_last_loss(document.get("folder"))
    return row if loss is None else {**row, "loss": loss}


def _sum_parts(rank: Mapping[str, object], parts: tuple[str, ...]) -> float:
    values = (rank.get(part) for part in parts)
    return sum(float(value) for value in values if isinstance(value, int | float))


def _read_last_loss(folder: object) -> float | None:
    """Return the mean loss of the ranks in the last step of each."""
    path = Path(folder) / "steps.parquet" if isinstance(folder, str) else None
    if path is None or not path.exists():
        return None
    from laggard.analysis.tables.parquet_input import open_parquet

    try:
        with open_parquet(path) as file:
            table = file.read(columns=["rank", "step", "loss"]).to_pydict()
    except (InputError, OSError, KeyError):
        return None
    last = {
        rank: loss
        for _, rank, loss in sorted(zip(table["step"], table["rank"], table["loss"], strict=True))
        if loss is not None
    }
    return statistics.fmean(last.values()) if last else None


def _scalar(value: object) -> Scalar:
    return value if isinstance(value, str | int | float | bool) else None
