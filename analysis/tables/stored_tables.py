"""Tables that are too large for memory: read from the run folder in parts, by step.

The next part is read while the current one is processed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import numpy as np
import numpy.typing as npt

from laggard.analysis.tables.arrow_columns import (
    cast_to_schema,
    to_array,
    to_columns,
    to_span_columns,
)
from laggard.analysis.tables.columns import SpanColumns, StepColumns, concatenate_tables
from laggard.analysis.tables.parquet_input import open_parquet
from laggard.core.errors import RunFolderError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_T = TypeVar("_T", SpanColumns, StepColumns)


@dataclass(frozen=True)
class RowGroup:
    """Row group of a Parquet file: number of rows, and least and greatest step and start."""

    rows: int
    steps: tuple[int, int]
    starts_ns: tuple[int, int]


class TableFile:
    """Parquet file whose row groups are ordered by step.

    Attributes:
        path: path of the file.
        schema: schema of its rows.
        groups: its row groups; empty if they are not ordered by step, or lack statistics.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path, self.schema = path, schema
        self._file, self.groups = self._open()

    def __len__(self) -> int:
        return int(self._file.metadata.num_rows)

    def read_all(self) -> pa.Table:
        """Read all rows, regardless of the order of the row groups."""
        return self.read(range(self._file.metadata.num_row_groups))

    def read(self, numbers: Sequence[int], names: Sequence[str] | None = None) -> pa.Table:
        """Read row groups by number.

        Args:
            numbers: numbers of the row groups.
            names: columns to read; None for all.

        Raises:
            RunFolderError: the file is not a table of this schema.
        """
        import pyarrow as pa

        schema = (
            self.schema if names is None else pa.schema([self.schema.field(name) for name in names])
        )
        present = [name for name in schema.names if name in self._file.schema_arrow.names]
        try:
            return cast_to_schema(
                self._file.read_row_groups(list(numbers), columns=present), schema
            )
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise _create_table_error(self.path, self.schema, error) from error

    def leading_groups(self, rows: int) -> range:
        """Return the numbers of the first row groups that together have at least `rows` rows.

        If the table has fewer rows, these are all row groups.
        """
        ends = np.cumsum([group.rows for group in self.groups])
        return range(min(int(np.searchsorted(ends, rows)) + 1, len(ends)))

    def find_max_rank(self) -> int:
        """Return the greatest rank of all rows; statistics may be wrong, so the rows are read."""
        ranks = (
            to_array(self.read([number], ["rank"]), "rank", self.path)
            for number in range(len(self.groups))
        )
        return max((int(each.max(initial=-1)) for each in ranks), default=-1)

    def iterate_columns(self, convert: Callable[[pa.Table, Path], _T]) -> Iterator[_T]:
        """Yield the columns of each row group while the next one is read in a thread.

        Args:
            convert: conversion of a table; called in the thread too.
        """

        def read_columns(number: int) -> _T:
            return convert(self.read([number]), self.path)

        with ThreadPoolExecutor(1) as reader:
            coming = reader.submit(read_columns, 0) if self.groups else None
            for number in range(1, len(self.groups) + 1):
                assert coming is not None
                columns = coming.result()
                coming = reader.submit(read_columns, number) if number < len(self.groups) else None
                yield columns

    def _open(self) -> tuple[pq.ParquetFile, tuple[RowGroup, ...]]:
        import pyarrow as pa

        try:
            file = open_parquet(self.path)
            # Names of columns and statistics are decoded only here.
            return file, _read_row_groups(file.metadata)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _create_table_error(self.path, self.schema, error) from error


def _create_table_error(path: Path, schema: pa.Schema, error: Exception) -> RunFolderError:
    return RunFolderError(
        f"{path}: cannot be read as a table with the columns {', '.join(schema.names)} ({error});"
        " collect the run again"
    )


def _read_row_groups(metadata: pq.FileMetaData) -> tuple[RowGroup, ...]:
    """Return the row groups; none if they are not ordered by step or lack statistics.

    A step may continue in the next row group.
    """
    groups = []
    for number in range(metadata.num_row_groups):
        row_group = metadata.row_group(number)
        columns = {
            row_group.column(index).path_in_schema: row_group.column(index).statistics
            for index in range(row_group.num_columns)
        }
        ranges = [columns.get(name) for name in ("step", "start_ns")]
        # A file with other columns has statistics of other types, or none.
        if any(
            known is None or not known.has_min_max or not isinstance(known.min, int)
            for known in ranges
        ):
            return ()
        groups.append(
            RowGroup(
                row_group.num_rows,
                *((int(known.min), int(known.max)) for known in ranges if known is not None),
            )
        )
    follow = all(one.steps[1] <= other.steps[0] for one, other in pairwise(groups))
    return tuple(groups) if follow else ()


class _StoredColumns:
    """Table whose columns are read on first use, by name, and then kept."""

    _file: TableFile

    def __init__(self, file: TableFile) -> None:
        # The column classes are frozen dataclasses; their columns are set only when read.
        object.__setattr__(self, "_file", file)

    def __len__(self) -> int:
        return len(self._file)

    def __getattr__(self, name: str) -> npt.NDArray[Any]:
        # Python calls this only for attributes that do not exist yet.
        if name.startswith("_") or name not in self._file.schema.names:
            raise AttributeError(name)
        column = to_array(
            self._file.read(range(len(self._file.groups)), [name]), name, self._file.path
        )
        object.__setattr__(self, name, column)
        return column


class StoredSpans(_StoredColumns, SpanColumns):
    """`spans.parquet`, read on demand.

    A column is read by its name and then kept. Parts have all columns and are not kept.
    """

    def with_columns(self, **columns: npt.NDArray[Any]) -> Self:
        """See `Columns.with_columns`."""
        return cast("Self", SpanColumns(**columns))

    def parts(self) -> Iterator[Self]:
        """See `Columns.parts`."""
        columns = self._file.iterate_columns(to_span_columns)
        return cast("Iterator[Self]", split_at_steps(columns))

    def first(self, count: int) -> Self:
        """See `Columns.first`."""
        return self._read_spans(self._file.leading_groups(count))

    def of_steps(self, first: int, last: int) -> Self:
        """See `SpanColumns.of_steps`."""
        groups = self._file.groups
        spans = self._read_spans(
            [
                n
                for n, group in enumerate(groups)
                if group.steps[0] <= last and group.steps[1] >= first
            ]
        )
        return spans.where((spans.step >= first) & (spans.step <= last))

    def overlapping(self, first_ns: float, last_ns: float) -> Self:
        """See `SpanColumns.overlapping`.

        A span is in the row group whose range of starts includes its own, or, because the rows of
        a step are together, in an adjacent one.
        """
        groups = self._file.groups
        inside = [
            n
            for n, group in enumerate(groups)
            if group.starts_ns[0] <= last_ns and group.starts_ns[1] >= first_ns
        ]
        chosen = (
            {n for number in inside for n in (number - 1, number)} if inside else {len(groups) - 1}
        )
        return self._read_spans(sorted(n for n in chosen if n >= 0))

    @property
    def max_rank(self) -> int:
        """See `SpanColumns.max_rank`."""
        return self._file.find_max_rank()

    def _read_spans(self, numbers: Sequence[int]) -> Self:
        return cast("Self", to_span_columns(self._file.read(numbers), self._file.path))


class StoredSteps(_StoredColumns, StepColumns):
    """`steps.parquet`, read on demand like `StoredSpans`."""

    @property
    def max_rank(self) -> int:
        """See `StepColumns.max_rank`."""
        return self._file.find_max_rank()

    def with_columns(self, **columns: npt.NDArray[Any]) -> Self:
        """See `Columns.with_columns`."""
        return cast("Self", StepColumns(**columns))

    def parts(self) -> Iterator[Self]:
        """See `Columns.parts`."""
        columns = self._file.iterate_columns(partial(to_columns, StepColumns))
        return cast("Iterator[Self]", split_at_steps(columns))

    def first(self, count: int) -> Self:
        """See `Columns.first`."""
        table = self._file.read(self._file.leading_groups(count))
        return cast("Self", to_columns(StepColumns, table, self._file.path))


def split_at_steps(tables: Iterable[_T]) -> Iterator[_T]:
    """Yield the same rows, but cut between steps.

    The rows that a table has of its last step are yielded with the next one.
    """
    kept: _T | None = None
    for table in tables:
        rows = table if kept is None else concatenate_tables([kept, table])
        if not len(rows):
            continue
        cut = int(np.searchsorted(rows.step, rows.step[-1]))
        if cut:
            yield rows.where(np.s_[:cut])
        kept = rows.where(np.s_[cut:])
    if kept is not None:
        yield kept
