"""Files of a run, a campaign or a crate, which may come from a stranger.

A folder is read without following links. An archive is read within limits of entries, sizes and
names, and nothing of it is unpacked but the files that a reader asks for.
"""

from __future__ import annotations

import os
import stat
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from laggard.core.errors import FileReadError
from laggard.core.files.file_kinds import describe_kind
from laggard.core.files.input_files import CHUNK_BYTES, MAX_DOCUMENT_BYTES, open_regular
from laggard.crate.archive_limits import require_small_directory
from laggard.crate.crate_files import MAX_FILES

MAX_FILE_BYTES = 1 << 30
"""Largest file that is read, in bytes; JSON documents have a lower limit."""

MAX_TOTAL_BYTES = 8 << 30
"""Largest sum of the sizes of all files of an archive, as it states them."""

_MAX_NAME = 400
_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_ENCRYPTED = 0x1


class SourceTree(ABC):
    """Files by their name relative to the root, with `/` between folders.

    Attributes:
        path: folder or archive, for messages.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def names(self) -> frozenset[str]:
        """Return the names of all regular files."""

    @abstractmethod
    def open(self, name: str) -> AbstractContextManager[BinaryIO]:
        """Open a file for reading.

        Raises:
            FileReadError: there is no such file, or it cannot be read safely.
        """

    def read(self, name: str, most: int = MAX_DOCUMENT_BYTES) -> bytes:
        """Read a file of at most `most` bytes.

        Raises:
            FileReadError: the file is missing, larger, damaged, or not a regular file.
        """
        return b"".join(self.iterate(name, most))

    def iterate(self, name: str, most: int = MAX_FILE_BYTES) -> Iterator[bytes]:
        """Yield the content of a file in chunks (see `read`)."""
        size = 0
        with self.open(name) as file:
            while chunk := self._read_chunk(file, name):
                size += len(chunk)
                if size > most:
                    raise self.refuse(name, f"larger than {most} bytes, the limit for this file")
                yield chunk

    def _read_chunk(self, file: BinaryIO, name: str) -> bytes:
        import zlib

        try:
            return file.read(CHUNK_BYTES)
        except (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise self.refuse(name, f"damaged: {error}") from error

    def refuse(self, name: str, reason: str) -> FileReadError:
        """Return the error that a file is not read."""
        where = f"{self.path}: {name}" if name else str(self.path)
        return FileReadError(where, reason, "copy it again from its source")


class FolderTree(SourceTree):
    """Files of a folder; links are refused, also in the middle of a path."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._names = frozenset(self._list_names())

    def names(self) -> frozenset[str]:
        """See `SourceTree.names`."""
        return self._names

    def _list_names(self) -> Iterator[str]:
        count = 0
        for parent, folders, files in os.walk(self.path):
            below = Path(parent).relative_to(self.path)
            count += len(folders) + len(files)
            if count > 10 * MAX_FILES:
                raise self.refuse("", f"more than {10 * MAX_FILES} files and folders")
            for name in files:
                # Pipes and devices are listed too: they are refused by name if they are needed.
                if not (Path(parent) / name).is_symlink():
                    yield (below / name).as_posix()

    @contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        """See `SourceTree.open`."""
        path = self.path
        for part in name.split("/"):
            path /= part
            if part in {"", ".", ".."} or path.is_symlink():
                raise self.refuse(name, "a link or a path out of its folder, which is not followed")
        with open_regular(path) as file:
            yield file


class ArchiveTree(SourceTree):
    """Files of a zip archive."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        super().__init__(path)
        self._archive = archive
        self._entries = self._check_entries()

    def names(self) -> frozenset[str]:
        """See `SourceTree.names`."""
        return frozenset(self._entries)

    def _check_entries(self) -> Mapping[str, zipfile.ZipInfo]:
        entries: dict[str, zipfile.ZipInfo] = {}
        for entry in self._archive.infolist():
            if entry.is_dir():
                continue
            problem = _find_problem(entry)
            if entry.filename in entries:
                problem = "two files have this name"
            if problem is not None:
                raise self.refuse(entry.filename[:_MAX_NAME], problem)
            entries[entry.filename] = entry
        total = sum(entry.file_size for entry in entries.values())
        if total > MAX_TOTAL_BYTES:
            raise self.refuse("", f"{total} bytes unpacked, and {MAX_TOTAL_BYTES} are the limit")
        return entries

    @contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        """See `SourceTree.open`."""
        entry = self._entries.get(name)
        if entry is None:
            raise self.refuse(name, "there is no such file")
        try:
            file = self._archive.open(entry)
        except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
            raise self.refuse(name, f"damaged: {error}") from error
        with file:
            yield cast("BinaryIO", file)


@contextmanager
def open_source(path: Path) -> Iterator[SourceTree]:
    """Open a folder or a zip archive.

    Raises:
        FileReadError: it is neither, or an archive that is damaged or beyond the limits.
    """
    if path.is_dir():
        yield FolderTree(path.resolve())
        return
    with open_regular(path) as file:
        require_small_directory(path, file, MAX_FILES)
        try:
            archive = zipfile.ZipFile(file)
        except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError) as error:
            raise FileReadError(
                str(path), f"not a zip archive that can be read: {error}", "copy it again"
            ) from error
        with archive:
            yield ArchiveTree(path, archive)


def _find_problem(entry: zipfile.ZipInfo) -> str | None:
    """Return why an entry is refused; None if it is not."""
    mode = entry.external_attr >> 16
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        return f"{describe_kind(mode)}, and only regular files are read"
    if not is_safe_name(entry.filename):
        return "a name with .., an absolute path or unprintable characters"
    if entry.flag_bits & _ENCRYPTED:
        return "encrypted"
    if entry.compress_type not in _METHODS:
        return f"compression method {entry.compress_type}, and only deflate is read"
    return None


def is_safe_name(name: str) -> bool:
    """Return whether a name stays in its folder, and can be shown."""
    parts = name.split("/")
    return (
        0 < len(name) <= _MAX_NAME
        and name.isprintable()
        and "\\" not in name
        and not any(part in {"", ".", ".."} for part in parts)
    )
