"""Writer of all output files: atomic, durable, and never through a link.

A run folder may come from a stranger. If a file of it were written in place, a symbolic link with
the file's name would make Laggard overwrite any file of its user.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from laggard.core.errors import InputError
from laggard.core.files.file_kinds import describe_kind


@contextmanager
def replace_file(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Yield a new binary file, which replaces the file at `path` when the body ends.

    The data is written to a temporary file in the same folder, because a rename is atomic within
    one file system only. Every reader sees either the old or the new content, even after a crash.
    If the body raises, the temporary file is removed and the old file stays.

    Args:
        path: file to write; a caller resolves links of the user in its folder's path beforehand.
        mode: permissions of the new file, before the umask.

    Raises:
        InputError: the file exists and is not a regular file, or its folder is a link.
        OSError: the file cannot be written.
    """
    folder = _open_folder(path)
    try:
        _require_replaceable(path, folder)
        temporary = f".{secrets.token_hex(8)}.partial"
        # O_EXCL refuses an existing name, links included.
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, mode, dir_fd=folder)
        try:
            with os.fdopen(descriptor, "w+b") as file:
                yield file
                file.flush()
                # The data must be on the disk before the rename is, or a crash could leave an empty
                # file.
                os.fsync(file.fileno())
            os.rename(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise
    except OSError as error:
        # System calls on a folder's descriptor report the bare name.
        if error.filename is None or not Path(error.filename).is_absolute():
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        os.close(folder)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the content of the file at `path` (see `replace_file`)."""
    with replace_file(path) as file:
        file.write(content)


def write_text(path: Path, text: str, mode: int = 0o666) -> None:
    """Replace the content of the file at `path` by text in UTF-8 (see `replace_file`).

    Lone surrogates, which stand for bytes of a file name that are not UTF-8, become escapes.
    """
    with replace_file(path, mode) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def write_json(path: Path, value: object) -> None:
    """Replace the content of the file at `path` by a JSON document (see `replace_file`)."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def make_folder(root: Path, *names: str) -> Path:
    """Create a folder below `root`, and its parents, and return it.

    Raises:
        InputError: a folder below `root` is a link.
        OSError: a folder cannot be created.
    """
    folder = root
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        folder /= name
        folder.mkdir(exist_ok=True)
        if folder.is_symlink():
            raise _make_link_error(folder)
    return folder


def _make_link_error(folder: Path) -> InputError:
    return InputError(
        f"{folder}: this folder is a symbolic link, and no output file is written through a link —"
        " remove it, or give the folder that it points to"
    )


def _open_folder(path: Path) -> int:
    try:
        return os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and path.parent.is_symlink():
            raise _make_link_error(path.parent) from error
        raise


def _require_replaceable(path: Path, folder: int) -> None:
    try:
        mode = os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise InputError(
            f"{path}: {describe_kind(mode)}, and an output file replaces only a regular file —"
            " remove it, or choose another place"
        )
