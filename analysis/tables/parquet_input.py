"""Opening of a stranger's Parquet file, within limits on its rows.

Encoded and compressed columns of equal values need almost no bytes, so a small file can claim to
have billions of rows.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.core.errors import RunFolderError
from laggard.core.files.input_files import open_regular

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_FREE_ROWS = 4_000_000
"""Number of rows that a file of any size may have; they fit in memory."""

_MAX_ROWS_PER_BYTE = 8
"""Largest number of rows per byte of a larger file. A recorded row takes several bytes."""

_MAX_GROUP_ROWS = 1 << 24
"""Largest number of rows in a row group, the smallest part that is read. Laggard writes 2^20."""


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a Parquet file.

    Raises:
        RunFolderError: the file is not a regular file, or has more rows than its bytes can hold.
        ArrowException, OSError, ValueError: it is not a Parquet file.
    """
    import pyarrow.parquet as pq

    with open_regular(path) as opened:
        # Arrow opens it by its descriptor, because it refuses paths that are not UTF-8.
        file = pq.ParquetFile(f"/proc/self/fd/{opened.fileno()}")
        size = os.fstat(opened.fileno()).st_size
    metadata = file.metadata
    groups = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    rows = max(metadata.num_rows, sum(groups))
    most = max(_FREE_ROWS, _MAX_ROWS_PER_BYTE * size)
    if rows > most:
        raise RunFolderError(
            f"{path}: claims to have {rows} rows, and a file of {size} bytes holds at most {most} —"
            " copy the file again"
        )
    if max(groups, default=0) > _MAX_GROUP_ROWS:
        raise RunFolderError(
            f"{path}: has a row group of {max(groups)} rows, and at most {_MAX_GROUP_ROWS} are read"
            " at once — write it with smaller row groups"
        )
    return file
