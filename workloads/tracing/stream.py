"""Streams of numpy rows in Arrow IPC files without a footer, readable up to the point of a kill.

The rows that a stream has not written yet are in a file of their own (`pending_rows.py`), so that a
kill loses none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from laggard.workloads.tracing.pending_rows import CAPACITY, PendingRows, read_pending_rows
from laggard.workloads.tracing.row_types import Rows

FLUSH_NS = 1_000_000_000
"""Time between two writes of a stream."""


class RowStream:
    """Stream of rows of one type, buffered and written about once a second.

    Args:
        path: path of the file.
        row: type of a row.
    """

    def __init__(self, path: Path, row: np.dtype[np.void]) -> None:
        self._pending = PendingRows.create(path, row)
        self.rows = self._pending.rows
        self._file = pa.OSFile(str(path), "wb")
        self._schema = pa.schema(
            [(name, pa.from_numpy_dtype(row[name])) for name in row.names or ()]
        )
        self._writer = pa.ipc.new_stream(self._file, self._schema)
        self._flushed_ns = time.monotonic_ns()
        self._path = path
        self._is_broken = False

    @property
    def count(self) -> int:
        """Return the number of buffered rows."""
        return self._pending.count

    def append(self, row: tuple[int | float | bool, ...]) -> None:
        """Add one row, in the order of the type's fields."""
        if self._pending.count == CAPACITY:
            self.flush()
        self._pending.append(row)

    def flush_if_due(self, now_ns: int) -> None:
        """Write the buffered rows if a second has passed since the last write."""
        if now_ns - self._flushed_ns >= FLUSH_NS:
            self.flush()

    def flush(self) -> None:
        """Write the buffered rows.

        Raises:
            OSError: the disk is full or fails. The rows stay in the file of pending rows, and
                nothing more is written to the stream.
        """
        if (count := self._pending.count) and not self._is_broken:
            self._write(count)
        self._flushed_ns = time.monotonic_ns()

    def _write(self, count: int) -> None:
        held, whole_bytes = self.rows[:count], self._file.tell()
        columns = [_column(held[field.name], field.type) for field in self._schema]
        try:
            self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        except OSError:
            # What followed a part of a batch would be read as its rest.
            self._is_broken = True
            with suppress(OSError):
                os.truncate(self._path, whole_bytes)
            raise
        self._pending.set_written()

    def close(self) -> None:
        """Write the remaining rows and end the stream."""
        self.flush()
        if self._is_broken:
            self._file.close()
            return
        self._writer.close()
        self._file.close()
        self._pending.remove()


def _column(
    values: np.ndarray[tuple[int, ...], np.dtype[np.generic]], kind: pa.DataType
) -> pa.Array:
    # pa.array() would import pandas first, which takes more than a second in the middle of a
    # throttled worker's training.
    return pa.Array.from_buffers(
        kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))]
    )


def read_rows(path: Path, row: np.dtype[np.void]) -> Rows:
    """Return the rows of all complete batches of a stream, and those that follow them.

    The result is empty if the stream does not exist.

    Raises:
        ValueError: the file of the pending rows is damaged.
    """
    parts = [split_records(batch, row) for batch in _batches(path)] if path.exists() else []
    in_stream = sum(map(len, parts))
    return np.concatenate([*parts, read_pending_rows(path, row, in_stream)])


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the complete record batches of a file."""
    with pa.OSFile(str(path), "rb") as file:
        try:
            yield from pa.ipc.open_stream(file)
        except (pa.ArrowInvalid, OSError):
            # The writer was killed here; the batches before are complete.
            return


def split_records(batch: pa.RecordBatch, row: np.dtype[np.void]) -> Rows:
    """Return the rows of a record batch."""
    # The batch may come from a machine that is not trusted.
    batch.validate(full=True)
    rows = np.zeros(batch.num_rows, dtype=row)
    for name in row.names or ():
        rows[name] = batch.column(name).to_numpy(zero_copy_only=False)
    return rows
