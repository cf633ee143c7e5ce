"""Reading within limits: regular files only, bounded sizes, and JSON with finite numbers.

A file of a run folder or a trace may come from a stranger. Opening a named pipe would wait for
ever, and a small file may claim to contain gigabytes.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from laggard.core.errors import FileReadError, RunFolderError
from laggard.core.files.file_kinds import describe_kind

MAX_DOCUMENT_BYTES = 64 << 20
"""Largest JSON document of a run folder, in bytes."""

MAX_TRACE_BYTES = 16 << 30
"""Largest trace file of another tool, in bytes, also after decompression. It is read in chunks."""

CHUNK_BYTES = 1 << 20
"""Size of the chunks in which a trace file is read."""

_MAX_DIGITS = 25
"""Largest number of digits of an integer; 64 bits need 20."""


JsonDocument = None | bool | int | float | str | list["JsonDocument"] | dict[str, "JsonDocument"]


@contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading.

    Raises:
        FileReadError: the file is a pipe, a device or another special file, or cannot be read.
    """
    _require_regular_path(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise _make_read_error(path, error) from error
    with os.fdopen(descriptor, "rb") as file:
        _require_regular_mode(path, os.fstat(descriptor).st_mode)
        yield file


def _require_regular_path(path: Path) -> None:
    """Require a regular file; it is not opened, because that can block (a pipe) or act (a device).

    Raises:
        FileReadError: the file is a pipe, a device or another special file, or is missing.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise _make_read_error(path, error) from error
    _require_regular_mode(path, mode)


def read_bounded(path: Path, most: int = MAX_DOCUMENT_BYTES) -> bytes:
    """Read a regular file of at most `most` bytes.

    Raises:
        FileReadError: the file is larger, or not a regular file, or cannot be read.
    """
    with open_regular(path) as file:
        try:
            # One byte more than allowed reveals a file that is too large.
            data = file.read(most + 1)
        except OSError as error:
            raise _make_read_error(path, error) from error
    if len(data) > most:
        raise _make_size_error(path, "", most)
    return data


def read_chunks(
    path: Path, most: int = MAX_TRACE_BYTES, *, gzipped: bool = False
) -> Iterator[bytes]:
    """Yield the content of a regular file in chunks of at most `CHUNK_BYTES`.

    Args:
        path: file to read.
        most: largest number of bytes, after decompression.
        gzipped: whether to decompress the file.

    Raises:
        FileReadError: the content has more than `most` bytes, or the file is not a regular file,
            or cannot be read.
        EOFError, OSError, zlib.error: the gzip file is truncated or damaged.
    """
    read = 0
    with open_regular(path) as file:
        source: BinaryIO | gzip.GzipFile = gzip.GzipFile(fileobj=file) if gzipped else file
        while True:
            try:
                chunk = source.read(CHUNK_BYTES)
            except OSError as error:
                if gzipped:
                    raise
                raise _make_read_error(path, error) from error
            if not chunk:
                return
            read += len(chunk)
            if read > most:
                raise _make_size_error(path, "decompressed, " if gzipped else "", most)
            yield chunk


def expand_home(path: str) -> Path:
    """Return a path whose `~` is replaced; the `~` of an unknown user stays."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def read_json(path: Path, most: int = MAX_DOCUMENT_BYTES) -> JsonDocument:
    """Read a JSON document of a run folder.

    Raises:
        RunFolderError: the file is too large, not a regular file, or not JSON; or a number in it is
            not finite or too long.
    """
    data = read_bounded(path, most)
    try:
        return parse_json(data)
    except (ValueError, RecursionError) as error:
        raise RunFolderError(
            f"{path}: not a valid JSON document: {error} — the file was changed or cut short; copy"
            " it again"
        ) from error


def parse_json(data: bytes) -> JsonDocument:
    """Parse JSON, with finite numbers of a usual length.

    Raises:
        ValueError: it is not JSON in UTF-8, or has such a number, or lone surrogates.
        RecursionError: it is nested too deeply.
    """
    document: JsonDocument = json.loads(
        data.decode("utf-8"),
        parse_constant=_refuse_constant,
        parse_int=parse_int,
        parse_float=_parse_float,
    )
    return document


def parse_int(text: str) -> int:
    """Parse an integer of a JSON document.

    Raises:
        ValueError: it has too many digits; Python would need a time quadratic in their number.
    """
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"the number {text[:_MAX_DIGITS]}... has {len(text)} digits")
    return int(text)


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:_MAX_DIGITS]} is too large")
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number of JSON")


def _require_regular_mode(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise FileReadError(
            str(path), f"{describe_kind(mode)}, and only regular files are read", "give a file"
        )


def _make_read_error(path: Path, error: OSError | ValueError) -> FileReadError:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return FileReadError(str(path), f"cannot be read: {reason}", "check path and permissions")


def _make_size_error(path: Path, state: str, most: int) -> FileReadError:
    return FileReadError(
        str(path), f"{state}larger than {most} bytes, the limit for this kind of file", "check it"
    )
