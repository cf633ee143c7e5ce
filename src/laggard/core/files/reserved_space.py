"""Space on a disk that is kept for the last versions of one file, should the disk become full."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

RESERVED_BYTES = 1 << 16
_PADDING = b"\n"


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


def replace_by_reserve(reserves: Sequence[Path], path: Path, content: bytes) -> None:
    """Replace a file on a full disk: its content is written into reserved space, then renamed.

    Line breaks after the content keep the space of the reserve, since another program could take
    what is given back. From the second time on, the replaced file has such space and becomes a
    reserve itself. So two reserves last for any number of times.

    Args:
        reserves: two files that `reserve_space` created, on the same file system.
        path: file to replace.
        content: new content of the file.

    Raises:
        OSError: the content is larger than the reserve, or no reserve is left.
    """
    reserve = next((each for each in reserves if each.exists()), None)
    if reserve is None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(reserve, flags), "wb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if len(content) > size or file.write(content.ljust(size, _PADDING)) < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.fsync(file.fileno())
    free = next((each for each in reserves if not each.exists()), None)
    with suppress(OSError):  # without it, one reserve less is left
        if free is not None and path.stat().st_size == size:
            os.link(path, free)
    reserve.rename(path)


def remove_padding(path: Path) -> None:
    """Give back the space that a replaced file keeps (see `replace_by_reserve`)."""
    if path.stat().st_size == RESERVED_BYTES:
        content = path.read_bytes().rstrip(_PADDING) + _PADDING
        os.truncate(path, min(len(content), RESERVED_BYTES))
