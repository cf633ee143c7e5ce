"""Rows of a campaign's results table that count: the last attempt of every cell that is done."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from laggard.core.campaign_columns import FIXED_COLUMNS, OPTIONAL_COLUMNS
from laggard.core.errors import RunFolderError
from laggard.core.files.input_files import read_bounded

_NEEDED = ("run", "status", "folder")


@dataclass(frozen=True)
class CountedCell:
    """Row of `results.csv`.

    Attributes:
        cell: digest of the cell; the run if the table has no such column.
        run: id of the run.
        folder: run folder, as recorded.
        label: scenario, variant, seed and varied values as text.
    """

    cell: str
    run: str
    folder: str
    label: str


def read_rows(path: Path) -> Sequence[CountedCell]:
    """Return the last attempt of every cell whose status is `done`.

    Raises:
        RunFolderError: the file is not a table of results.
    """
    return parse_rows(read_bounded(path), str(path))


def parse_rows(data: bytes, name: str) -> Sequence[CountedCell]:
    """Parse a table of results (see `read_rows`)."""
    try:
        reader = csv.DictReader(io.StringIO(data.decode("utf-8"), newline=""), strict=True)
        rows = [{key: value or "" for key, value in row.items() if key} for row in reader]
    except (csv.Error, ValueError) as error:
        raise _make_error(name, str(error)) from error
    missing = [column for column in _NEEDED if column not in (reader.fieldnames or ())]
    if missing:
        raise _make_error(name, f"it has no column {missing[0]}")
    known = {*FIXED_COLUMNS, *OPTIONAL_COLUMNS}
    last: dict[str, CountedCell] = {}
    for row in rows:
        # Rows of an earlier version of the campaign are kept in the table.
        if row["status"] != "done" or row.get("current") == "false":
            continue
        cell = row.get("cell") or row["run"]
        parts = [row.get(key, "") for key in ("scenario", "variant")]
        parts += [f"seed {row['seed']}"] if row.get("seed") else []
        parts += [f"{key}={value}" for key, value in row.items() if key not in known and value]
        label = ", ".join(part for part in parts if part)
        last[cell] = CountedCell(cell, row["run"], row["folder"], label or row["run"])
    return list(last.values())


def _make_error(name: str, reason: str) -> RunFolderError:
    return RunFolderError(
        f"{name}: not the results table of a campaign: {reason} — copy the file again"
    )
