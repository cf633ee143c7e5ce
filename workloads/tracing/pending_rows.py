"""Rows that their stream has not written yet, in a mapped file that survives a kill of the writer."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Self

import numpy as np

from laggard.workloads.tracing.row_types import Rows

CAPACITY = 4096
"""Number of rows that the file holds."""
_HEADER = np.dtype([("written", "i8"), ("count", "i8")])


class PendingRows:
    """Buffer of a stream's next rows in memory that the kernel keeps if the process is killed.

    The file begins with the number of rows that the stream contains already, and the number of
    rows in the buffer. A reader of both files therefore takes every row once, wherever the writer
    was killed.

    Attributes:
        rows: buffer, shape (CAPACITY,).
    """

    def __init__(self, path: Path, header: Rows, rows: Rows) -> None:
        self.rows = rows
        self._path = path
        self._written = header["written"]
        self._count = header["count"]

    @classmethod
    def create(cls, stream: Path, row: np.dtype[np.void]) -> Self:
        """Create the file of a stream's pending rows.

        Args:
            stream: path of the stream.
            row: type of a row.

        Raises:
            OSError: the disk has no space for it.
        """
        path = get_pending_path(stream)
        size = _get_size(row)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o644)
        try:
            # Without space of its own, a write to the mapping would end the process by a signal
            # when the disk is full.
            os.posix_fallocate(descriptor, 0, size)
            memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        return cls(path, *_split(memory, row))

    @property
    def count(self) -> int:
        """Return the number of pending rows."""
        return int(self._count[0])

    def append(self, row: tuple[int | float | bool, ...]) -> None:
        """Add a row; there must be room for it."""
        count = int(self._count[0])
        self.rows[count] = row
        # The row counts once it is whole.
        self._count[0] = count + 1

    def set_written(self) -> None:
        """Note that the stream contains all rows of the buffer now."""
        count = int(self._count[0])
        # In the other order, a kill in between would make the rows appear twice.
        self._count[0] = 0
        self._written[0] += count

    def remove(self) -> None:
        """Remove the file, whose rows are all in the stream."""
        self._path.unlink(missing_ok=True)


def get_pending_path(stream: Path) -> Path:
    """Return the path of the pending rows of a stream."""
    return stream.with_name(f"{stream.name}.pending")


def read_pending_rows(stream: Path, row: np.dtype[np.void], in_stream: int) -> Rows:
    """Return the rows that a killed process had not written to its stream yet.

    Args:
        stream: path of the stream.
        row: type of a row.
        in_stream: number of rows that can be read from the stream.

    Raises:
        ValueError: the file is not one that `PendingRows` wrote.
    """
    path = get_pending_path(stream)
    size = _get_size(row)
    if not path.is_file() or path.stat().st_size == 0:
        return np.zeros(0, dtype=row)
    with path.open("rb") as file:
        content = file.read(size + 1)
    if len(content) != size:
        raise ValueError(f"{path.name} must have {size} bytes")
    header, rows = _split(content, row)
    written, count = int(header["written"][0]), int(header["count"][0])
    if written < 0 or not 0 <= count <= CAPACITY:
        raise ValueError(f"{path.name} cannot hold {count} rows after {written}")
    return rows[max(0, in_stream - written) : count].copy()


def _get_size(row: np.dtype[np.void]) -> int:
    return _HEADER.itemsize + CAPACITY * row.itemsize


def _split(memory: mmap.mmap | bytes, row: np.dtype[np.void]) -> tuple[Rows, Rows]:
    header = np.frombuffer(memory, dtype=_HEADER, count=1)
    return header, np.frombuffer(memory, dtype=row, count=CAPACITY, offset=_HEADER.itemsize)
