"""Parquet file of ByteDance's StragglerAnalysis, and the YAML file with the job's sizes.

The format has one row per operation (J. Lin et al., Understanding Stragglers in Large Model
Training Using What-if Analysis, OSDI 2025). A file is checked completely before it is used.
Messages name a row by its number, counted from 0.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from laggard.analysis.formats.bytedance.operations import Operations, OpType
from laggard.analysis.tables.columns import BoolArray, FloatArray, IntArray
from laggard.analysis.tables.parquet_input import open_parquet
from laggard.core.errors import TraceFormatError
from laggard.core.files.output_files import replace_file, write_text

if TYPE_CHECKING:
    import pyarrow as pa

INTEGER_COLUMNS = ("dp_rank", "stage", "rank", "step", "seq_id", "mc", "mb_id", "gmc")
SECONDS_COLUMNS = {"start_ts": "start_s", "duration": "duration_s"}
COLUMNS = (*INTEGER_COLUMNS, *SECONDS_COLUMNS, "optype")
_NOT_NEGATIVE = ("dp_rank", "stage", "rank", "step", "seq_id", *SECONDS_COLUMNS)
_MAX_INT32 = np.iinfo(np.int32).max
# Larger values indicate another unit: 4e9 seconds after 1970 is the year 2096.
_LATEST_S, _LONGEST_STEP_S = 4e9, 1e6


def read_operations(path: Path) -> Operations:
    """Read and check a trace.

    Args:
        path: the Parquet file.

    Returns:
        Its operations.

    Raises:
        TraceFormatError: the file is invalid; the error names the row and the column.
    """
    table = _read_table(path)
    values: dict[str, IntArray | FloatArray] = {
        name: _read_integers(path, table, name) for name in INTEGER_COLUMNS
    }
    values |= {ours: _read_seconds(path, table, name) for name, ours in SECONDS_COLUMNS.items()}
    for name in (*INTEGER_COLUMNS, *SECONDS_COLUMNS):
        column = values[SECONDS_COLUMNS.get(name, name)]
        if name in _NOT_NEGATIVE:
            _reject_first(path, column < 0, name, column, "is negative")
        most, what = (
            (_LATEST_S, "seconds (check the unit)")
            if name in SECONDS_COLUMNS
            else (_MAX_INT32, "a 32-bit integer")
        )
        _reject_first(path, np.abs(column) > most, name, column, f"is too large for {what}")
    operations = Operations(**values, optype=_read_optypes(path, table))  # type: ignore[arg-type]
    _check_worker_grid(path, operations)
    _check_duplicates(path, operations)
    _check_steps(path, operations)
    return operations.to_sorted()


def _read_table(path: Path) -> pa.Table:
    import pyarrow as pa

    try:
        table = open_parquet(path).read()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        size = path.stat().st_size if path.is_file() else 0
        raise _make_format_error(
            path,
            f"byte {size}, its end",
            f"not a complete Parquet file ({reason})",
            "copy the whole file again",
        ) from error
    missing = [name for name in COLUMNS if name not in table.column_names]
    if missing:
        present = ", ".join(table.column_names) or "none"
        raise _make_format_error(
            path,
            f"column {missing[0]}",
            f"is missing (columns present: {present})",
            f"write the columns {', '.join(COLUMNS)}",
        )
    if not len(table):
        raise _make_format_error(path, "", "it has no rows", "export a trace of at least one step")
    return table


def _read_integers(path: Path, table: pa.Table, name: str) -> IntArray:
    import pyarrow as pa

    column = table.column(name)
    if not pa.types.is_integer(column.type):
        raise _make_format_error(
            path,
            f"column {name}",
            f"has type {column.type} and must be an integer",
            "write it as int64",
        )
    _reject_nulls(path, table, name)
    return np.asarray(column.to_numpy(), dtype=np.int64)


def _read_seconds(path: Path, table: pa.Table, name: str) -> FloatArray:
    import pyarrow as pa

    column = table.column(name)
    if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        raise _make_format_error(
            path,
            f"column {name}",
            f"has type {column.type} and must be a number of seconds",
            "write it as double",
        )
    _reject_nulls(path, table, name)
    seconds = np.asarray(column.to_numpy(), dtype=np.float64)
    _reject_first(path, ~np.isfinite(seconds), name, seconds, "is not a finite number of seconds")
    return seconds


def _read_optypes(path: Path, table: pa.Table) -> IntArray:
    import pyarrow as pa

    column = table.column("optype")
    text = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (pa.types.is_string(text) or pa.types.is_large_string(text)):
        raise _make_format_error(
            path,
            "column optype",
            f"has type {column.type} and must be text",
            "write the names of the operation types",
        )
    _reject_nulls(path, table, "optype")
    names = np.asarray(column.to_pylist(), dtype=np.str_)
    known, index = np.unique(names, return_inverse=True)
    codes = {optype.value: optype.code for optype in OpType}
    unknown = np.array([name not in codes for name in known.tolist()])
    _reject_first(path, unknown[index], "optype", names, f"is not one of {', '.join(codes)}")
    translated: IntArray = np.array([codes[name] for name in known.tolist()], dtype=np.int64)[index]
    return translated


def _reject_nulls(path: Path, table: pa.Table, name: str) -> None:
    column = table.column(name)
    if column.null_count:
        row = int(np.flatnonzero(np.asarray(column.is_null()))[0])
        raise _make_format_error(
            path,
            f"row {row}, column {name}",
            "is empty",
            "write a value in every column of every operation",
        )


def _reject_first(
    path: Path,
    bad: BoolArray,
    name: str,
    values: IntArray | FloatArray | np.ndarray[tuple[int], np.dtype[np.str_]],
    rule: str,
) -> None:
    rows = np.flatnonzero(bad)
    if len(rows):
        also = f" ({len(rows)} such rows)" if len(rows) > 1 else ""
        value = values[rows[0]].item()
        raise _make_format_error(
            path,
            f"row {rows[0]}, column {name}",
            f"{value!r} {rule}{also}",
            "record the job again, or remove these steps",
        )


def _check_worker_grid(path: Path, operations: Operations) -> None:
    """Raise an error unless workers and places in the grid correspond one to one.

    The grid has a place for each data-parallel rank and stage.
    """
    places, first, index = np.unique(
        np.column_stack([operations.dp_rank, operations.stage]),
        axis=0,
        return_index=True,
        return_inverse=True,
    )
    grid = (int(operations.dp_rank.max()) + 1, int(operations.stage.max()) + 1)
    present = {(int(dp), int(stage)) for dp, stage in places}
    missing = grid[0] * grid[1] - len(present)
    if missing:
        places_in_order = ((dp, stage) for dp in range(grid[0]) for stage in range(grid[1]))
        dp, stage = next(place for place in places_in_order if place not in present)
        also = f" (and {missing - 1} more)" if missing > 1 else ""
        problem = (
            f"no operation of dp_rank {dp}, stage {stage}{also} among {grid[0]} x {grid[1]} workers"
        )
        raise _make_format_error(
            path, "", problem, "give a trace with one worker for every dp_rank and stage"
        )
    odd = operations.rank != operations.rank[first][index.ravel()]
    _reject_first(path, odd, "rank", operations.rank, "is a second rank at one dp_rank and stage")
    if len(np.unique(operations.rank[first])) != len(first):
        raise _make_format_error(
            path,
            "column rank",
            "one rank has two places in the grid",
            "give each rank one dp_rank and one stage",
        )


def _check_duplicates(path: Path, operations: Operations) -> None:
    # lexsort takes the last key as the primary one, hence the reversed columns.
    keys = np.column_stack([operations.step, operations.rank, operations.optype, operations.seq_id])
    order = np.lexsort(keys.T[::-1])
    again = np.flatnonzero((np.diff(keys[order], axis=0) == 0).all(axis=1))
    if len(again):
        one, other = sorted(order[again[0] : again[0] + 2].tolist())
        problem = f"has the same step, rank, optype and seq_id as row {one}"
        raise _make_format_error(
            path,
            f"row {other}",
            problem,
            "keep one file per worker, and renumber its operations",
        )


def _check_steps(path: Path, operations: Operations) -> None:
    steps, index = np.unique(operations.step, return_inverse=True)
    ranks = np.unique(operations.rank)
    first, last = np.full(len(steps), np.inf), np.zeros(len(steps))
    np.minimum.at(first, index, operations.start_s)
    np.maximum.at(last, index, operations.end_s)
    longest = int(np.argmax(last - first))
    if last[longest] - first[longest] > _LONGEST_STEP_S:
        problem = f"step {steps[longest]} takes {last[longest] - first[longest]:.4g} s"
        raise _make_format_error(
            path, "columns start_ts, duration", problem, "write both in seconds, on one clock"
        )
    present = np.zeros((len(steps), len(ranks)), dtype=np.bool_)
    present[np.searchsorted(steps, operations.step), np.searchsorted(ranks, operations.rank)] = True
    missing = np.argwhere(~present)
    if len(missing):
        step, rank = int(steps[missing[0][0]]), int(ranks[missing[0][1]])
        problem = (
            f"step {step} has no operation of rank {rank}, but some of other ranks"
            f" ({len(missing)} such gaps)"
        )
        raise _make_format_error(
            path, "", problem, "remove the steps that not all workers recorded"
        )


def _make_format_error(path: Path, where: str, problem: str, fix: str) -> TraceFormatError:
    return TraceFormatError(str(path), where, problem, fix)


def write_operations(operations: Operations, path: Path) -> Path:
    """Write a trace, and beside it `meta-<name>.yaml` with the job's sizes.

    ByteDance's tool reads no trace without that file.

    Args:
        operations: operations to write.
        path: the Parquet file; it is replaced if it exists.

    Returns:
        The path of the YAML file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    ours = {name: name for name in INTEGER_COLUMNS} | SECONDS_COLUMNS
    columns = {theirs: pa.array(getattr(operations, name)) for theirs, name in ours.items()}
    names = pa.array([optype.value for optype in OpType])
    columns["optype"] = pa.DictionaryArray.from_arrays(
        pa.array(operations.optype.astype(np.int8)), names
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as file:
        pq.write_table(pa.table(columns), file, compression="zstd")
    data_parallel, stages = int(operations.dp_rank.max()) + 1, int(operations.stage.max()) + 1
    # dp, dsp, pp, tp and vpp are the degrees of parallelism in the names of ByteDance's tool;
    # Laggard has only data parallelism and pipeline stages.
    sizes = {
        "dp": data_parallel,
        "dsp": 1,
        "pp": stages,
        "tp": 1,
        "vpp": 1,
        "world": data_parallel * stages,
    }
    name = path.stem.replace('"', "")
    lines = [
        f'trial_name: "{name}"',
        "run_id: 0",
        *(f"{key}_size: {size}" for key, size in sizes.items()),
    ]
    meta = path.with_name(f"meta-{path.stem}.yaml")
    write_text(meta, "\n".join(lines) + "\n")
    return meta
