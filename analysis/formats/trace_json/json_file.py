"""Opening of a JSON file in chunks, plain or gzipped, and a look at its beginning."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from laggard.core.errors import FileReadError, TraceFormatError
from laggard.core.files.input_files import open_regular, read_chunks

JSON_SUFFIXES = (".json", ".json.gz")
"""Suffixes of the files that are read."""
# First bytes of every gzip file (RFC 1952).
_GZIP_MAGIC = b"\x1f\x8b"
_SNIFFED_BYTES = 64 << 10
_RANK_IN_NAME = re.compile(r"rank[^0-9]{0,2}(\d{1,6})", re.IGNORECASE)


def open_json_file(path: Path) -> tuple[Iterator[bytes], int]:
    """Return the content of a JSON file in chunks, and its size, which is 0 if it is gzipped.

    Raises:
        TraceFormatError: the name's suffix and the content differ, or the gzip file is damaged.
        FileReadError: the file is too large, not a regular file, or cannot be read.
    """
    gzipped = path.name.endswith(".gz")
    with open_regular(path) as file:
        is_gzip, size = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC, path.stat().st_size
    if not size:
        raise TraceFormatError(str(path), "", "the file is empty", "copy it again")
    if gzipped and not is_gzip:
        raise TraceFormatError(
            str(path),
            "byte 0",
            "the file's name ends in .gz, but it is not gzipped",
            "rename it to end in .json, or gzip it",
        )
    if is_gzip and not gzipped:
        raise TraceFormatError(
            str(path),
            "byte 0",
            "the file is gzipped, but its name does not end in .gz",
            "rename it to end in .json.gz",
        )
    return (_decompress(path, size), 0) if gzipped else (read_chunks(path), size)


def _decompress(path: Path, size: int) -> Iterator[bytes]:
    try:
        yield from read_chunks(path, gzipped=True)
    except (OSError, EOFError, zlib.error) as error:
        raise TraceFormatError(
            str(path),
            f"byte {size}, its end",
            f"the gzip file is truncated or damaged ({error})",
            "copy it again",
        ) from error


def read_beginning(path: Path) -> bytes:
    """Return the first bytes of a file's content; nothing if it cannot be read."""
    try:
        with open_regular(path) as file:
            raw = file.read(_SNIFFED_BYTES)
    except (FileReadError, OSError):
        return b""
    if not raw.startswith(_GZIP_MAGIC):
        return raw
    try:
        return zlib.decompressobj(wbits=31).decompress(raw, _SNIFFED_BYTES)
    except zlib.error:
        return b""


def list_json_files(path: Path) -> list[Path]:
    """Return a file itself, or the JSON files of a folder in the order of their names."""
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.name.endswith(JSON_SUFFIXES))


def parse_rank_of_name(name: str) -> int | None:
    """Return the rank in a file's name, such as 3 of `rank_3.json`, or None."""
    return int(found[1]) if (found := _RANK_IN_NAME.search(name)) else None
