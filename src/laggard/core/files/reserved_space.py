"""Space on a disk that is kept for one last file, should the disk become full."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

RESERVED_BYTES = 1 << 16
_BLOCK_BYTES = 1 << 12


def reserve_space(path: Path, size: int = RESERVED_BYTES) -> None:
    """Create a file that takes up space.

    Raises:
        OSError: the disk has no space for it.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(descriptor)


def replace_by_reserve(reserve: Path, path: Path, content: bytes) -> None:
    """Replace a file on a full disk: its content is written into reserved space, then renamed.

    Afterwards the old file's space and the rest of the reserve become a new, maybe smaller one.

    Args:
        reserve: file that `reserve_space` created, on the same file system.
        path: file to replace.
        content: new content of the file.

    Raises:
        OSError: the content is larger than the reserve.
    """
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(reserve, flags), "wb", buffering=0) as file:
        if file.write(content) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        file.truncate()
        os.fsync(file.fileno())
    reserve.rename(path)
    size = RESERVED_BYTES
    while size >= _BLOCK_BYTES and not reserve.exists():
        with suppress(OSError):
            reserve_space(reserve, size)
        size //= 2
