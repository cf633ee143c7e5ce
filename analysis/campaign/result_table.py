"""Table of a campaign's results, read as data of a stranger.

One row is one attempt of a cell. The fixed columns come first; every further column is a varied
key. Only the last attempt of a cell counts, and only if its status is `done`.
"""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from laggard.analysis.tables.parquet_input import open_parquet
from laggard.core.campaign_columns import FIXED_COLUMNS, OPTIONAL_COLUMNS
from laggard.core.errors import FileReadError, InputError, escape_unprintable
from laggard.core.files.input_files import read_bounded

SEED_KEY = "workload.seed"
"""Varied key that distinguishes repeats, not setups."""

METRICS = ("makespan_s", "samples_per_s", "accuracy", "cost", "fairness", "lost_share")
"""Columns that are compared."""

POSITIVE_METRICS = ("makespan_s", "samples_per_s")
"""Columns whose values are above 0; they are averaged as logarithms."""

_REQUIRED = ("cell", "scenario", "variant", "repeat", "seed", "attempt", "status", "makespan_s")

_MOST_BYTES = 32 << 20
_MOST_ROWS = 200_000
_MOST_AXES = 64
_MOST_CHARACTERS = 4096
_MOST_DIGITS = 25
_BATCH_ROWS = 16
"""Rows that are decoded at once: a dictionary of one huge text may stand for each of them."""

RawRow = Mapping[str, object]


@dataclass(frozen=True)
class ResultRow:
    """Cell of a campaign that is done.

    Attributes:
        repeat: number of the repeat.
        seed: seed of the run.
        values: text of every axis, by its name; see `ResultTable.axes`.
        metrics: measured values by column; a value that was not measured is absent.
        timed_out: whether the time limit of the training ended it.
    """

    repeat: int
    seed: int
    values: Mapping[str, str]
    metrics: Mapping[str, float]
    timed_out: bool = False


@dataclass(frozen=True)
class ResultTable:
    """Done cells of a campaign, in the order of the table.

    Attributes:
        path: file of the table.
        axes: names of everything that distinguishes setups: `scenario`, `variant`, varied keys.
        rows: the cells.
        left_out: one sentence per reason why cells do not count, with their number.
    """

    path: Path
    axes: tuple[str, ...]
    rows: tuple[ResultRow, ...]
    left_out: tuple[str, ...]


def is_result_table(path: Path) -> bool:
    """Return True if the path is the folder of a campaign or a table of results.

    A Parquet file of another name is a trace.
    """
    if path.is_dir():
        return any((path / name).is_file() for name in ("results.parquet", "results.csv"))
    return path.suffix == ".csv" or path.name == "results.parquet"


def load_results(path: Path) -> ResultTable:
    """Read the table of a campaign.

    Args:
        path: folder of the campaign, or its `results.parquet` or `results.csv`.

    Raises:
        InputError: there is no such table, it is not the table of a campaign, it is too large, or
            no cell in it counts.

    Examples:
        >>> table = load_results(Path("runs/campaigns/sweep"))
        >>> table.axes, len(table.rows)
        (('scenario', 'workload.strategy', 'network.networks.0.rate'), 24)
    """
    file = _find_table(path)
    names, rows = _read_csv(file) if file.suffix == ".csv" else _read_parquet(file)
    missing = [name for name in _REQUIRED if name not in names]
    if missing or len(set(names)) < len(names):
        problem = f"lacks {', '.join(missing)}" if missing else "has two columns of one name"
        raise _make_table_error(file, f"it {problem}")
    known = {*FIXED_COLUMNS, *OPTIONAL_COLUMNS, SEED_KEY}
    keys = [name for name in names if name not in known]
    if len(keys) > _MOST_AXES:
        raise _make_table_error(file, f"it varies {len(keys)} keys, and {_MOST_AXES} is the most")
    last: dict[str, RawRow] = {}
    for number, row in enumerate(rows, 1):
        _require_valid_row(file, number, row)
        cell = str(row["cell"])
        if cell not in last or _to_int(row["attempt"]) >= _to_int(last[cell]["attempt"]):
            last[cell] = row
    left_out = [reason for row in last.values() if (reason := _describe_omission(row))]
    done = [row for row in last.values() if not _describe_omission(row)]
    counted = tuple(
        f"{count} {'cell is' if count == 1 else 'cells are'} skipped: {reason}"
        for reason, count in sorted(Counter(left_out).items())
    )
    if not done:
        raise InputError(
            f"{file}: none of its {len(last)} cells has the status done and a makespan, so there is"
            " nothing to compare — start the campaign again"
            + "".join(f"\n{escape_unprintable(line)}" for line in counted)
        )
    axes = ["scenario", *(["variant"] if any(row["variant"] for row in done) else []), *keys]
    rows_done = tuple(_to_result_row(row, axes) for row in done)
    return ResultTable(file, tuple(axes), rows_done, counted)


def _find_table(path: Path) -> Path:
    if not path.is_dir():
        return path
    for name in ("results.parquet", "results.csv"):
        if (path / name).exists():
            return path / name
    raise InputError(
        f"{path}: has neither results.parquet nor results.csv, so it is not the folder of a"
        " campaign — give one, such as runs/campaigns/NAME"
    )


def _read_csv(file: Path) -> tuple[list[str], list[RawRow]]:
    try:
        text = read_bounded(file, _MOST_BYTES).decode("utf-8")
        lines = csv.reader(text.splitlines(keepends=True), strict=True)
        names = next(lines, [])
        rows: list[RawRow] = []
        for line in lines:
            if len(line) != len(names):
                raise _make_table_error(file, f"line {lines.line_num} has {len(line)} values")
            if len(rows) == _MOST_ROWS:
                raise _make_table_error(file, f"it has more than {_MOST_ROWS} rows")
            rows.append(dict(zip(names, line, strict=True)))
    except (csv.Error, UnicodeDecodeError) as error:
        raise _make_table_error(file, str(error)) from error
    return names, rows


def _read_parquet(file: Path) -> tuple[list[str], list[RawRow]]:
    import pyarrow as pa

    try:
        opened = open_parquet(file)
        metadata = opened.metadata
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        if sum(group.total_byte_size for group in groups) > _MOST_BYTES:
            raise _make_table_error(file, f"it has more than {_MOST_BYTES >> 20} MiB")
        if metadata.num_rows > _MOST_ROWS:
            raise _make_table_error(file, f"it has more than {_MOST_ROWS} rows")
        names = list(opened.schema_arrow.names)
        rows: list[RawRow] = []
        decoded = 0
        for batch in opened.iter_batches(_BATCH_ROWS):
            decoded += batch.nbytes
            if decoded > 8 * _MOST_BYTES:
                raise _make_table_error(file, f"it has more than {8 * _MOST_BYTES >> 20} MiB")
            rows += batch.to_pylist()
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        if isinstance(error, FileReadError):
            raise
        raise _make_table_error(file, str(error)) from error
    return names, rows


def _require_valid_row(file: Path, number: int, row: RawRow) -> None:
    for name, value in row.items():
        problem = _find_problem(name, value)
        if problem:
            raise _make_table_error(file, f"row {number}, column {name}: {problem}")
    for name in POSITIVE_METRICS:
        value = _to_number(row.get(name))
        if value is not None and value <= 0:
            raise _make_table_error(file, f"row {number}, column {name}: {value} is not above 0")


def _find_problem(name: str, value: object) -> str:
    if not isinstance(value, (bool, int, float, str, type(None))):
        return f"a {type(value).__name__}, and only texts and numbers are read"
    if isinstance(value, str) and len(value) > _MOST_CHARACTERS and name not in _PROSE:
        return f"{len(value)} characters, and {_MOST_CHARACTERS} is the most"
    if name == "seed" and value in (None, ""):
        # Nothing is trained.
        return ""
    if name in _INTEGERS and _to_number(value) is None:
        return f"{value!r} is not a whole number"
    if name in METRICS and value not in (None, "") and _to_number(value) is None:
        is_nan = isinstance(value, float) and math.isnan(value)
        return "" if is_nan else f"{value!r} is not a number"
    return ""


_PROSE = frozenset({"reason", "answer"})
_INTEGERS = frozenset({"repeat", "seed", "attempt"})


def _to_number(value: object) -> float | None:
    """Return a finite number, or None."""
    if not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _to_int(value: object) -> int:
    """Return a whole number; a seed may have more digits than a floating-point number holds."""
    if isinstance(value, int):
        return value
    if isinstance(value, str) and value.isdecimal() and len(value) <= _MOST_DIGITS:
        return int(value)
    return int(_to_number(value) or 0)


def _to_result_row(row: RawRow, axes: Sequence[str]) -> ResultRow:
    metrics = {name: _to_number(row.get(name)) for name in METRICS}
    return ResultRow(
        _to_int(row["repeat"]),
        _to_int(row["seed"]),
        {axis: _to_text(row[axis]) for axis in axes},
        {name: value for name, value in metrics.items() if value is not None},
        row.get("stopped_by") == "time",
    )


def _to_text(value: object) -> str:
    """Return the text of a value of an axis, which is equal in both files of a campaign."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _describe_omission(row: RawRow) -> str:
    """Return the reason why a cell does not count; empty if it counts."""
    if str(row.get("current", True)).lower() == "false":
        return "an earlier version of the scenario or of the campaign"
    if row["status"] != "done":
        return f"status {row['status']}, not done"
    # Without a workload, an experiment has no makespan.
    return "" if _to_number(row["makespan_s"]) is not None else "no makespan"


def _make_table_error(file: Path, reason: str) -> InputError:
    return InputError(
        escape_unprintable(
            f"{file}: not the table of a campaign: {reason} — give the results.parquet or"
            " results.csv that laggard campaign wrote"
        )
    )
