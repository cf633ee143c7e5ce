"""Names of files that a node reports, and local files opened by such names.

A name from a node may be anything. It is accepted only if it stays below the folder that it is
relative to, and no symbolic link is followed on the way.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

MOST_NAME_BYTES = 1024
_MOST_PART_BYTES = 255
"""Longest part of a path between slashes, on every common file system of Linux."""


def require_contained_name(name: str) -> str:
    """Return the name of a file below a folder, unchanged.

    Raises:
        ValueError: the name is not relative, printable and short, or has a part `.` or `..`.
    """
    size = len(os.fsencode(name)) if name.isprintable() else 0
    parts = name.split("/")
    if (
        not 0 < size <= MOST_NAME_BYTES
        or any(part in ("", ".", "..") for part in parts)
        or any(len(os.fsencode(part)) > _MOST_PART_BYTES for part in parts)
    ):
        raise ValueError(
            f"{name[:100]!a} is no file name: it must be relative, printable, at most"
            f" {MOST_NAME_BYTES} bytes long, and without `.` and `..`"
        )
    return name


ContainedName = Annotated[str, AfterValidator(require_contained_name)]
"""Relative name of a file below a folder, for pydantic."""


def open_contained(root: Path, name: str, flags: int) -> int:
    """Open a regular file below a folder and return its descriptor; missing folders are made.

    Args:
        root: existing folder
        name: name of the file, relative to the folder
        flags: flags of open(2)

    Raises:
        ValueError: the name is not accepted by `require_contained_name`
        OSError: the file cannot be opened, a part of its path is a symbolic link, or it is not a
            regular file
    """
    *folders, last = require_contained_name(name).split("/")
    folder_flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    here = os.open(root, folder_flags)
    try:
        for folder in folders:
            with suppress(FileExistsError):
                os.mkdir(folder, dir_fd=here)
            below = os.open(folder, folder_flags, dir_fd=here)
            os.close(here)
            here = below
        # Without O_NONBLOCK, opening a named pipe would wait for its other end.
        kept = flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(last, kept, 0o644, dir_fd=here)
    finally:
        os.close(here)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{root / name}: not a regular file")
    return descriptor
