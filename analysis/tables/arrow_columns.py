"""Conversion of Arrow tables, as run folders have them, to numpy columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from laggard.analysis.tables.columns import Columns, SpanColumns
from laggard.core.errors import RunFolderError
from laggard.core.span_schema import Lane, Phase

if TYPE_CHECKING:
    import pyarrow as pa

_C = TypeVar("_C", bound=Columns)
# Columns that older runs lack, from before strategies had versions.
_LATER_COLUMNS = ("read_version", "applied_version", "waited_for")
MAX_RANKS = 4096
"""Largest number of ranks. Matrices of all pairs of ranks must fit in memory."""

# 417 days in nanoseconds. Sums of many such times still fit in 64 bits.
_MAX_TIME_NS = 1 << 55
_TIME_BOUNDS = (-_MAX_TIME_NS, _MAX_TIME_NS)
_OTHER_BOUNDS = (-1, _MAX_TIME_NS)
BOUNDS: Mapping[str, tuple[int, int]] = {
    "rank": (0, MAX_RANKS - 1),
    "lane": (min(Lane), max(Lane)),
    "start_ns": _TIME_BOUNDS,
    "end_ns": _TIME_BOUNDS,
    "time_ns": _TIME_BOUNDS,
    "seq": (-(1 << 15), 1 << 15),
    **dict.fromkeys(("dur_ns", "bytes", "work"), (0, _MAX_TIME_NS)),
    **dict.fromkeys(("samples", "batch_size", "dropped", "skipped"), (0, _MAX_TIME_NS)),
}
"""Least and greatest value of the integer columns; the others have -1 for "none"."""

_MAX_TEXT = 256
_PHASE_CODES = {phase.value: phase.code for phase in Phase}


def cast_to_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table with the columns and types of `schema`.

    A run from before strategies had versions lacks the columns of versions; these are filled with
    -1.

    Raises:
        ArrowException, KeyError, ValueError: the table has other columns.
    """
    import pyarrow as pa

    for name in _LATER_COLUMNS:
        if name in schema.names and name not in table.column_names:
            table = table.append_column(name, pa.array(np.full(len(table), -1, dtype=np.int32)))
    columns = table.select(schema.names).cast(schema)
    # Invalid text and indexes beyond a dictionary would be noticed only when they are used.
    columns.validate(full=True)
    return columns


def to_columns(kind: type[_C], table: pa.Table, path: Path) -> _C:
    """Convert all columns of a table.

    Args:
        kind: class of the columns that the table has.
        table: table as stored.
        path: path of the file, for messages.

    Raises:
        RunFolderError: the table has an unknown phase.
    """
    return kind(**{field.name: to_array(table, field.name, path) for field in fields(kind)})


def to_span_columns(table: pa.Table, path: Path) -> SpanColumns:
    """Convert a table of spans, sorted by step, rank and start (see `to_columns`)."""
    return to_columns(SpanColumns, table, path).ordered()


def to_array(table: pa.Table, name: str, path: Path) -> npt.NDArray[Any]:
    """Convert a column to an array.

    Integers are widened to int64, with 0 for null. Floats have NaN for null and for infinity, and
    text has ''. Phases become their codes.

    Raises:
        RunFolderError: a value is outside of `BOUNDS`, or a text is too long.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    column = table.column(name)
    if pa.types.is_dictionary(column.type):
        return _to_phase_codes(column, path)
    if pa.types.is_floating(column.type):
        numbers = np.asarray(column.to_numpy(), dtype=np.float64)
        return np.where(np.isfinite(numbers), numbers, np.nan)
    if pa.types.is_string(column.type):
        require_short_texts(column, name, path)
        return np.asarray(pc.fill_null(column, "").to_pylist(), dtype=np.str_)
    if column.null_count:
        column = pc.fill_null(column, False if pa.types.is_boolean(column.type) else 0)
    values: npt.NDArray[Any] = column.to_numpy()
    if values.dtype == np.bool_:
        return values
    values = values.astype(np.int64)
    _require_bounds(values, name, path)
    return values


def require_short_texts(column: pa.ChunkedArray, name: str, path: Path) -> None:
    """Require texts of a usual length; numpy gives every row as much memory as the longest needs.

    Raises:
        RunFolderError: a text is too long.
    """
    import pyarrow.compute as pc

    longest = pc.max(pc.utf8_length(column)).as_py() or 0
    if longest > _MAX_TEXT:
        raise RunFolderError(
            f"{path}: column {name}: a text has {longest} characters, and at most {_MAX_TEXT} are"
            " read — copy the file again"
        )


def _require_bounds(values: npt.NDArray[Any], name: str, path: Path) -> None:
    least, most = BOUNDS.get(name, _OTHER_BOUNDS)
    if values.min(initial=least) < least or values.max(initial=most) > most:
        row = int(np.flatnonzero((values < least) | (values > most))[0])
        raise RunFolderError(
            f"{path}: row {row}, column {name}: {values[row]} is not between {least} and {most} —"
            " copy the file again"
        )


def _to_phase_codes(column: pa.ChunkedArray, path: Path) -> npt.NDArray[Any]:
    import pyarrow as pa

    encoded = column.combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.chunk(0) if encoded.num_chunks else pa.array([], encoded.type)
    names = encoded.dictionary.to_pylist()
    unknown = [name for name in names if name not in _PHASE_CODES]
    if unknown:
        raise RunFolderError(
            f"{path}: unknown phase {unknown[0]!r}; a span's phase is one of"
            f" {', '.join(_PHASE_CODES)}"
        )
    # A table's dictionary has its own order of phases, and none at all in an empty table.
    codes = np.array([_PHASE_CODES[name] for name in names] or [0], dtype=np.int64)
    phases: npt.NDArray[Any] = codes[np.asarray(encoded.indices.fill_null(0), dtype=np.int64)]
    return phases
