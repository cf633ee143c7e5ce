"""Atomic replacement of a file."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replace_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary path, and replace the file at `path` with it when the body ends.

    Every reader sees either the old or the new content. If the body raises, the temporary file is
    removed and the old file stays.
    """
    # In the same folder, because a rename is atomic within one file system only.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the content of the file at `path`, atomically and durably.

    Every reader sees either the old or the new content, even after a crash.
    """
    with replace_atomically(path) as temporary, temporary.open("wb") as file:
        file.write(content)
        # The data must be on the disk before the rename is, or a crash could leave an empty file.
        file.flush()
        os.fsync(file.fileno())
