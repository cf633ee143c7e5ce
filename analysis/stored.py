"""Tables of a run folder that are too large to be held at once: read in parts, in the order of
their steps, while the part before is worked on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import numpy as np
import numpy.typing as npt

from laggard.analysis.arrow_columns import as_stored, column_of, columns_of, span_columns
from laggard.analysis.columns import SpanColumns, StepColumns, joined
from laggard.errors import RunFolderError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_T = TypeVar("_T", SpanColumns, StepColumns)


@dataclass(frozen=True)
class Group:
    """A row group: rows, and the least and greatest of its steps, ranks and starts."""

    rows: int
    steps: tuple[int, int]
    ranks: tuple[int, int]
    starts_ns: tuple[int, int]


class TableFile:
    """A Parquet file whose row groups follow each other by step.

    Attributes:
        path: of the file.
        schema: of its rows.
        groups: its row groups; empty where they do not follow each other, or do not say.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path, self.schema = path, schema
        self._file = self._opened()
        self.groups = _in_order(self._file.metadata)

    def __len__(self) -> int:
        return int(self._file.metadata.num_rows)

    def all(self) -> pa.Table:
        """All rows, whether or not row groups follow each other."""
        return self.read(range(self._file.metadata.num_row_groups))

    def read(self, numbers: Sequence[int], names: Sequence[str] | None = None) -> pa.Table:
        """Row groups, by number; of all their columns or of some.

        Raises:
            RunFolderError: the file is not what its name says.
        """
        import pyarrow as pa

        schema = (
            self.schema if names is None else pa.schema([self.schema.field(name) for name in names])
        )
        there = [name for name in schema.names if name in self._file.schema_arrow.names]
        try:
            return as_stored(self._file.read_row_groups(list(numbers), columns=there), schema)
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise _not_a_table(self.path, self.schema, error) from error

    def beginning(self, rows: int) -> range:
        """The first row groups, by number, that hold so many rows, if there are."""
        ends = np.cumsum([group.rows for group in self.groups])
        return range(min(int(np.searchsorted(ends, rows)) + 1, len(ends)))

    def tables(self) -> Iterator[pa.Table]:
        """Each row group, the next being read meanwhile."""
        with ThreadPoolExecutor(1) as reader:
            coming = reader.submit(self.read, [0]) if self.groups else None
            for number in range(1, len(self.groups) + 1):
                assert coming is not None
                table = coming.result()
                coming = reader.submit(self.read, [number]) if number < len(self.groups) else None
                yield table

    def _opened(self) -> pq.ParquetFile:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return pq.ParquetFile(self.path)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _not_a_table(self.path, self.schema, error) from error


def _not_a_table(path: Path, schema: pa.Schema, error: Exception) -> RunFolderError:
    return RunFolderError(
        f"{path}: not a table with the columns {', '.join(schema.names)} ({error}); collect the run"
        " again"
    )


def _in_order(metadata: pq.FileMetaData) -> tuple[Group, ...]:
    groups = []
    for number in range(metadata.num_row_groups):
        of = metadata.row_group(number)
        columns = {
            of.column(index).path_in_schema: of.column(index).statistics
            for index in range(of.num_columns)
        }
        ranges = [columns.get(name) for name in ("step", "rank", "start_ns")]
        if any(known is None or not known.has_min_max for known in ranges):
            return ()
        groups.append(
            Group(
                of.num_rows,
                *((int(known.min), int(known.max)) for known in ranges if known is not None),
            )
        )
    follow = all(one.steps[1] <= other.steps[0] for one, other in pairwise(groups))
    return tuple(groups) if follow else ()


class _Stored:
    """A table whose columns are read when they are asked for by their names, and kept then."""

    _file: TableFile

    def __init__(self, file: TableFile) -> None:
        object.__setattr__(self, "_file", file)

    def __len__(self) -> int:
        return len(self._file)

    def __getattr__(self, name: str) -> npt.NDArray[Any]:
        if name.startswith("_") or name not in self._file.schema.names:
            raise AttributeError(name)
        column = column_of(
            self._file.read(range(len(self._file.groups)), [name]), name, self._file.path
        )
        object.__setattr__(self, name, column)
        return column


class StoredSpans(_Stored, SpanColumns):
    """`spans.parquet`, read when it is asked for: a column by its name, which is kept then, or all
    in parts, of which nothing is kept.
    """

    def like(self, **columns: npt.NDArray[Any]) -> Self:
        """See `Columns.like`."""
        return cast("Self", SpanColumns(**columns))

    def parts(self) -> Iterator[Self]:
        """See `Columns.parts`."""
        tables = (span_columns(table, self._file.path) for table in self._file.tables())
        return cast("Iterator[Self]", whole_steps(tables))

    def first(self, count: int) -> Self:
        """See `Columns.first`."""
        return self._of(self._file.beginning(count))

    def of_steps(self, first: int, last: int) -> Self:
        """See `SpanColumns.of_steps`."""
        groups = self._file.groups
        spans = self._of(
            [
                n
                for n, group in enumerate(groups)
                if group.steps[0] <= last and group.steps[1] >= first
            ]
        )
        return spans.where((spans.step >= first) & (spans.step <= last))

    def around(self, first_ns: float, last_ns: float) -> Self:
        """See `SpanColumns.around`; a span is in the row group that it began in, or, as those of a
        step are together, in one beside it.
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
        return self._of(sorted(n for n in chosen if n >= 0))

    @property
    def most_rank(self) -> int:
        """See `SpanColumns.most_rank`."""
        return max((group.ranks[1] for group in self._file.groups), default=-1)

    def _of(self, numbers: Sequence[int]) -> Self:
        return cast("Self", span_columns(self._file.read(numbers), self._file.path))


class StoredSteps(_Stored, StepColumns):
    """`steps.parquet`, the same way."""

    def like(self, **columns: npt.NDArray[Any]) -> Self:
        """See `Columns.like`."""
        return cast("Self", StepColumns(**columns))

    def parts(self) -> Iterator[Self]:
        """See `Columns.parts`."""
        tables = (columns_of(StepColumns, table, self._file.path) for table in self._file.tables())
        return cast("Iterator[Self]", whole_steps(tables))

    def first(self, count: int) -> Self:
        """See `Columns.first`."""
        table = self._file.read(self._file.beginning(count))
        return cast("Self", columns_of(StepColumns, table, self._file.path))


def whole_steps(tables: Iterable[_T]) -> Iterator[_T]:
    """The same rows, cut between steps: what a table has of its last step comes with the next
    one.
    """
    kept: _T | None = None
    for table in tables:
        rows = table if kept is None else joined([kept, table])
        if not len(rows):
            continue
        cut = int(np.searchsorted(rows.step, rows.step[-1]))
        if cut:
            yield rows.where(np.s_[:cut])
        kept = rows.where(np.s_[cut:])
    if kept is not None:
        yield kept
