"""Streams of numpy rows in Arrow IPC files without a footer, readable up to the point of a kill."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

CAPACITY = 4096
"""Number of rows that a stream buffers."""
FLUSH_NS = 1_000_000_000
"""Time between two writes of a stream."""

Rows = np.ndarray[tuple[int, ...], np.dtype[np.void]]

SPAN_ROW = np.dtype(
    [
        ("step", "i4"), ("rank", "i4"), ("lane", "i1"), ("phase", "i1"), ("seq", "i2"),
         ("start_ns", "i8"),
        ("dur_ns", "i8"), ("group", "i4"), ("peer", "i4"), ("bytes", "i8"), ("work", "i4"),
         ("flags", "u1"),
    ]
)  # fmt: skip
STEP_ROW = np.dtype(
    [
        ("step", "i4"), ("rank", "i4"), ("start_ns", "i8"), ("end_ns", "i8"), ("loss", "f8"),
         ("samples", "i4"),
        ("batch_size", "i4"), ("staleness", "i4"), ("dropped", "i4"), ("skipped", "i4"),
         ("read_version", "i4"),
        ("applied_version", "i4"), ("waited_for", "i4"),
    ]
)  # fmt: skip
LINK_ROW = np.dtype(
    [
        ("time_ns", "i8"), ("src", "i4"), ("dst", "i4"), ("src_port", "i4"), ("dst_port", "i4"),
         ("rtt_us", "i8"),
        ("min_rtt_us", "i8"), ("delivery_rate_bytes_per_s", "i8"), ("app_limited", "u1"),
         ("last_send_ms", "i8"),
        ("bytes_acked", "i8"), ("retransmits", "i8"), ("busy_us", "i8"), ("rwnd_limited_us", "i8"),
        ("sndbuf_limited_us", "i8"),
    ]
)  # fmt: skip


class RowStream:
    """Stream of rows of one type, buffered in preallocated memory and written about once a second.

    Args:
        path: path of the file.
        row: type of a row.
    """

    def __init__(self, path: Path, row: np.dtype[np.void]) -> None:
        self.rows = np.zeros(CAPACITY, dtype=row)
        self.count = 0
        self._file = pa.OSFile(str(path), "wb")
        self._schema = pa.schema(
            [(name, pa.from_numpy_dtype(row[name])) for name in row.names or ()]
        )
        self._writer = pa.ipc.new_stream(self._file, self._schema)
        self._flushed_ns = time.monotonic_ns()

    def append(self, row: tuple[int | float | bool, ...]) -> None:
        """Add one row, in the order of the type's fields."""
        if self.count == CAPACITY:
            self.flush()
        self.rows[self.count] = row
        self.count += 1

    def flush_if_due(self, now_ns: int) -> None:
        """Write the buffered rows if a second has passed since the last write."""
        if now_ns - self._flushed_ns >= FLUSH_NS:
            self.flush()

    def flush(self) -> None:
        """Write the buffered rows."""
        if self.count:
            held = self.rows[: self.count]
            columns = [_column(held[field.name], field.type) for field in self._schema]
            self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))
            self.count = 0
        self._flushed_ns = time.monotonic_ns()

    def close(self) -> None:
        """Write the remaining rows and end the stream."""
        self.flush()
        self._writer.close()
        self._file.close()


def _column(
    values: np.ndarray[tuple[int, ...], np.dtype[np.generic]], kind: pa.DataType
) -> pa.Array:
    # pa.array() would import pandas first, which takes more than a second in the middle of a
    # throttled worker's training.
    return pa.Array.from_buffers(
        kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))]
    )


def read_rows(path: Path, row: np.dtype[np.void]) -> Rows:
    """Return the rows of all complete batches of a stream.

    The result is empty if the file does not exist or was cut off in its first batch.
    """
    parts = [split_records(batch, row) for batch in _batches(path)] if path.exists() else []
    return np.concatenate(parts) if parts else np.zeros(0, dtype=row)


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
