"""Dashboard of a campaign: one static page, rewritten after every cell, that reloads itself."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from laggard.campaign.campaign_state import Scalar
from laggard.campaign.progress import CampaignProgress, format_duration
from laggard.campaign.result_columns import FIXED_COLUMNS
from laggard.campaign.results_table import Table
from laggard.core.files.output_files import write_text

DASHBOARD_FILE = "index.html"
_MAX_ROWS = 500
_RELOAD_S = 10


def write_dashboard(
    folder: Path, table: Table, progress: CampaignProgress, *, running: bool
) -> None:
    """Write the page.

    Args:
        folder: folder of the campaign.
        table: results table.
        progress: counts and remaining time.
        running: whether the campaign goes on, so that the page reloads.
    """
    from jinja2 import Environment

    keys = [name for name in table if name not in FIXED_COLUMNS]
    rows = _list_rows(table)
    page = Environment(autoescape=True).from_string(
        files("laggard.campaign").joinpath("dashboard.html").read_text("utf-8")
    )
    text = page.render(
        name=folder.name,
        progress=progress,
        remaining=None if progress.remaining_s is None else format_duration(progress.remaining_s),
        keys=keys,
        rows=[_format_row(folder, keys, row) for row in reversed(rows[-_MAX_ROWS:])],
        failures=[
            _format_row(folder, keys, row) for row in rows[:-_MAX_ROWS] if row["status"] != "done"
        ],
        hidden=max(0, len(rows) - _MAX_ROWS),
        reload_s=_RELOAD_S if running else None,
    )
    write_text(folder / DASHBOARD_FILE, text)


def _list_rows(table: Table) -> Sequence[Mapping[str, Scalar]]:
    names = list(table)
    return [dict(zip(names, values, strict=True)) for values in zip(*table.values(), strict=True)]


def _format_row(
    folder: Path, keys: Sequence[str], row: Mapping[str, Scalar]
) -> dict[str, str | list[str] | None]:
    run = row.get("folder")
    report = Path(str(run)) / "report.html" if run else None
    return {
        "status": str(row["status"]),
        "scenario": f"{row['scenario']} {row['variant'] or ''}".strip(),
        "values": [_format(row[key]) for key in keys],
        "repeat": _format(row["repeat"]),
        "makespan": _format(row["makespan_s"]),
        "accuracy": _format(row["accuracy"]),
        "lost": "" if row["lost_share"] is None else f"{100 * float(row['lost_share']):.1f} %",
        "elapsed": _format(row["elapsed_s"]),
        "answer": _format(row["reason"] or row["answer"]),
        "report": os.path.relpath(report, folder) if report and report.exists() else None,
    }


def _format(value: Scalar) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
