"""Limits of a zip archive that must hold before it is opened.

Python reads the whole directory of an archive into memory, so its size is taken from the record
at the end of the file first.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import BinaryIO

from laggard.core.errors import FileReadError

_END = struct.Struct("<4s4H2LH")
_END_SIGNATURE = b"PK\x05\x06"
_LOCATOR_SIGNATURE = b"PK\x06\x07"
_MAX_COMMENT = 1 << 16
_LOCATOR_BYTES = 20
_BYTES_PER_ENTRY = 1 << 10


def require_small_directory(path: Path, file: BinaryIO, most: int) -> None:
    """Require an archive whose directory has at most `most` entries.

    Args:
        path: path of the archive, for the message.
        file: the open archive.
        most: largest number of entries.

    Raises:
        FileReadError: it has more, or is not a zip archive below 4 GiB.
    """
    file.seek(0, os.SEEK_END)
    size = file.tell()
    file.seek(max(0, size - _MAX_COMMENT - _END.size - _LOCATOR_BYTES))
    tail = file.read()
    at = tail.rfind(_END_SIGNATURE)
    if at < 0 or len(tail) - at < _END.size:
        raise FileReadError(str(path), "neither a folder nor a zip archive", "give one of both")
    fields = _END.unpack_from(tail, at)
    entries, directory = fields[4], fields[5]
    if tail[max(0, at - _LOCATOR_BYTES) :].startswith(_LOCATOR_SIGNATURE):
        raise FileReadError(
            str(path), "an archive in the format for 4 GiB and more", "unpack it, give the folder"
        )
    if entries > most or directory > most * _BYTES_PER_ENTRY:
        raise FileReadError(
            str(path),
            f"{entries} entries in a directory of {directory} bytes, and {most} are the limit",
            "check it",
        )
    file.seek(0)
