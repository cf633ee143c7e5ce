"""Reader of streams that other processes still write: returns the batches since the last call."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa

from laggard.workloads.tracing.row_types import Rows
from laggard.workloads.tracing.stream import split_records

MOST_BYTES = 4 << 20
"""Most bytes that one call reads, which keeps calls short after a long pause. The next call reads
the rest."""


class RowFollower:
    """Follower of one stream that another process appends to.

    Args:
        path: path of the file, which may not exist yet.
        row: type of a row.
    """

    def __init__(self, path: Path, row: np.dtype[np.void]) -> None:
        self._path = path
        self._row = row
        self._offset = 0
        self._schema: pa.Schema | None = None

    def read(self) -> Rows:
        """Return the rows of all complete batches since the last call; empty if there are none."""
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
    """Return the next message; None if it is missing or incomplete, or the stream has ended."""
    try:
        return pa.ipc.read_message(reader)
    except (pa.ArrowInvalid, EOFError, OSError):
        return None
