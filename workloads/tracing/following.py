"""Reads what other processes stream while they stream it: the batches that have come since the last
look.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa

from laggard.workloads.tracing.stream import Rows, split_records

MOST_BYTES = 4 << 20
"""Read in one look, so that a look is short even where much has piled up; the rest is there at the
next."""


class RowFollower:
    """One stream that another process appends to.

    Args:
        path: the file; it may not be there yet.
        row: type of a row.
    """

    def __init__(self, path: Path, row: np.dtype[np.void]) -> None:
        self._path = path
        self._row = row
        self._offset = 0
        self._schema: pa.Schema | None = None

    def read(self) -> Rows:
        """The rows of all whole batches since the last call; none where there is nothing new."""
        reader = pa.BufferReader(self._held())
        begin, parts = self._offset, []
        while (message := _read_next_message(reader)) is not None:
            self._offset = begin + reader.tell()
            parts += self._rows(message)
        return np.concatenate(parts) if parts else np.zeros(0, dtype=self._row)

    def _rows(self, message: pa.Message) -> list[Rows]:
        if self._schema is None:
            self._schema = pa.ipc.read_schema(message)
            return []
        return [split_records(pa.ipc.read_record_batch(message, self._schema), self._row)]

    def _held(self) -> bytes:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""
        try:
            return os.pread(descriptor, MOST_BYTES, self._offset)
        finally:
            os.close(descriptor)


def _read_next_message(reader: pa.BufferReader) -> pa.Message | None:
    """The next message; None where it has not come, or not whole, or the stream has ended."""
    try:
        return pa.ipc.read_message(reader)
    except (pa.ArrowInvalid, EOFError, OSError):
        return None
