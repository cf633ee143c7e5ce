"""Messages about files that cannot be written, and about file systems without space."""

from __future__ import annotations

import errno
import os
from pathlib import Path

OUT_OF_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_FIXES = {
    errno.ENOSPC: "free some space there, or choose another disk",
    errno.EDQUOT: "free some of your quota there, or choose another disk",
    errno.EMFILE: "permit more open files with `ulimit -n`",
    errno.ENFILE: "close other programs, or raise the limit in /proc/sys/fs/file-max",
    errno.EIO: "check the disk, or choose another one",
    errno.EROFS: "choose a disk that can be written to",
}
_LEAST_BYTES = 1 << 20
_LEAST_FILES = 8


def is_disk_error(error: OSError) -> bool:
    """Return whether a disk or a limit is the reason, rather than a path or a bug."""
    return error.errno in _FIXES


def describe_os_error(error: OSError) -> str:
    """Return the file, the reason and the fix of an error of the operating system."""
    where = f"{error.filename}: " if error.filename is not None else ""
    fix = _FIXES.get(error.errno or 0, "check the path, its permissions and the free space")
    return f"{where}{error.strerror or error} — {fix}"


def describe_full_disk(folder: Path) -> str | None:
    """Return that the file system of a folder is full, as a message; None if it is not.

    A process that died because of a full disk could not write down why.
    """
    try:
        state = os.statvfs(folder)
    except OSError as error:
        return describe_os_error(error)
    left = state.f_bavail * state.f_frsize
    if left < _LEAST_BYTES:
        return f"{folder}: only {left >> 10} KiB are free — {_FIXES[errno.ENOSPC]}"
    # Some file systems have no fixed number of files and report 0.
    if state.f_files and state.f_favail < _LEAST_FILES:
        return f"{folder}: only {state.f_favail} more files fit — {_FIXES[errno.ENOSPC]}"
    return None
