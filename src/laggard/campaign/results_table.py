"""Results table of a campaign as CSV and Parquet, made from its state and renamed into place."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from pydantic import JsonValue

from laggard.campaign.campaign_state import STARTED, CampaignState, CellDescription, Scalar
from laggard.core.campaign_columns import FIXED_COLUMNS, OPTIONAL_COLUMNS
from laggard.core.files.output_files import replace_file, write_text

CSV_FILE = "results.csv"
PARQUET_FILE = "results.parquet"
_DIGEST_CHARACTERS = 12

Table = Mapping[str, Sequence[Scalar]]


def build_table(state: CampaignState, current: Collection[str]) -> Table:
    """Return one row per ended attempt, by column.

    Args:
        state: state of the campaign.
        current: digests of the cells that the campaign's file has now; others are of earlier
            versions of the file or of the scenario.

    Returns:
        The fixed columns, those of a task, and one column per varied key. A key's values stay
        numbers or texts if all of them are; otherwise they become JSON, so that 1 and "1" differ.
    """
    cells = state.list_cells()
    # The seed of a grid has a fixed column, varied or not.
    keys = [
        key
        for key in dict.fromkeys(key for cell in cells.values() for key in cell.varied)
        if key not in FIXED_COLUMNS
    ]
    has = {name for attempt in state.list_attempts() for name in attempt.row}
    known = (*FIXED_COLUMNS, *(name for name in OPTIONAL_COLUMNS if name in has))
    rows: list[dict[str, JsonValue]] = []
    attempts: Counter[str] = Counter()
    for attempt in state.list_attempts():
        cell = cells.get(attempt.digest)
        if attempt.status == STARTED or cell is None:
            continue
        attempts[attempt.digest] += 1
        rows.append(
            {
                **_describe_cell(attempt.digest, cell),
                "current": attempt.digest in current,
                "attempt": attempts[attempt.digest],
                **{name: value for name, value in attempt.row.items() if name in known},
                **{f"vary {key}": cell.varied.get(key) for key in keys},
            }
        )
    fixed = {name: [_to_scalar(row.get(name)) for row in rows] for name in known}
    varied = {key: _unify([row[f"vary {key}"] for row in rows]) for key in keys}
    return {**fixed, **varied}


def write_tables(folder: Path, table: Table) -> Path:
    """Write both files, and return the path of the CSV file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / CSV_FILE
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(table)
    for row in zip(*table.values(), strict=True):
        # A truth is written as in JSON, as it stands in columns of mixed values.
        writer.writerow([json.dumps(each) if isinstance(each, bool) else each for each in row])
    write_text(path, text.getvalue())
    arrays = {name: pa.array(_widen(values)) for name, values in table.items()}
    with replace_file(folder / PARQUET_FILE) as file:
        pq.write_table(pa.table(arrays), file)
    return path


def _describe_cell(digest: str, cell: CellDescription) -> dict[str, JsonValue]:
    return {
        "cell": digest[:_DIGEST_CHARACTERS],
        "setup": cell.setup[:_DIGEST_CHARACTERS],
        "scenario": cell.scenario,
        "variant": cell.variant,
        "repeat": cell.repeat,
        "seed": cell.seed,
    }


def _unify(values: Sequence[JsonValue]) -> list[Scalar]:
    """Return values of one type; a setup without this key has None."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {str} or kinds <= {int, float} or kinds <= {bool}:
        return [_to_scalar(value) for value in values]
    return [None if value is None else json.dumps(value, sort_keys=True) for value in values]


def _widen(values: Sequence[Scalar]) -> list[Scalar]:
    """Return floats if there are any floats among numbers, as Parquet has one type per column."""
    if any(type(value) is float for value in values):
        return [float(v) if isinstance(v, int) and not isinstance(v, bool) else v for v in values]
    return list(values)


def _to_scalar(value: JsonValue) -> Scalar:
    return json.dumps(value, sort_keys=True) if isinstance(value, list | dict) else value
