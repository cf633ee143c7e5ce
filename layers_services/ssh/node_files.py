"""Reader and writer of a node's files; this program runs on the node.

`transfer_session.py` sends the file as text, so it imports the standard library only. No command
line or script contains a file name: standard input begins with one line of JSON, a `Request`.
Numbers in the streams are unsigned, of eight bytes, most significant byte first.

- `read` writes, for every file in order, the number of bytes that follow and these bytes.
- `write` writes, for every file in order, the number of bytes that are already there. It then reads
  the remaining bytes of all files in order, and writes `DONE`. A file has the suffix `.part` until
  it is complete. Two writers of one file write the same bytes to the same places.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypedDict

DONE = b"done\n"
COUNT = struct.Struct(">Q")
CHUNK_BYTES = 1 << 18
_PART = ".part"


class FileRequest(TypedDict):
    """File of a request.

    Attributes:
        name: path relative to the request's folder
        offset: number of bytes that the controller has; `read` only
        size: size of the complete file
        corrupt: whether the node's copy has wrong content; `write` only
    """

    name: str
    offset: int
    size: int
    corrupt: bool


class TransferRequest(TypedDict):
    """Request to read or write files.

    Attributes:
        operation: `read` or `write`
        folder: folder of the files; a relative path is relative to the user's home
        files: the files, in the order of their contents in the stream
    """

    operation: str
    folder: str
    files: list[FileRequest]


def count_held_bytes(size: int, there: int, *, corrupt: bool) -> int:
    """Return the number of bytes of an incomplete file that need not be written again.

    Args:
        size: size of the complete file
        there: size of the incomplete file
        corrupt: whether the content on the node is wrong
    """
    return 0 if corrupt or there > size else there


def read_files(folder: Path, files: list[FileRequest], out: BinaryIO) -> None:
    """Write the missing bytes of files to a stream; a missing file has none."""
    for each in files:
        try:
            with (folder / each["name"]).open("rb") as file:
                there = min(os.fstat(file.fileno()).st_size, each["size"])
                left = max(0, there - each["offset"])
                out.write(COUNT.pack(left))
                file.seek(each["offset"])
                _copy(file, out, left)
        except FileNotFoundError:
            out.write(COUNT.pack(0))
    out.flush()


def write_files(folder: Path, files: list[FileRequest], source: BinaryIO, out: BinaryIO) -> None:
    """Read the missing bytes of files from a stream and complete the files."""
    _make_folders(folder)
    with ExitStack() as stack:
        parts = [stack.enter_context(_open_part(folder, each)) for each in files]
        out.write(b"".join(COUNT.pack(each.held) for each in parts))
        out.flush()
        for part in parts:
            part.complete(source)
    out.write(DONE)
    out.flush()


class _Part:
    """File that is being completed; `file` is None if it is complete already."""

    def __init__(self, path: Path, size: int, held: int, file: BinaryIO | None) -> None:
        self._path, self._size, self.held, self._file = path, size, held, file

    def complete(self, source: BinaryIO) -> None:
        """Read the missing bytes from a stream and give the file its name."""
        if self._file is None:
            return
        self._file.seek(self.held)
        _copy(source, self._file, self._size - self.held)
        self._file.truncate(self._size)
        self._file.flush()
        # Another writer of the same file may have renamed it.
        with suppress(FileNotFoundError):
            _get_part_path(self._path).replace(self._path)


@contextmanager
def _open_part(folder: Path, file: FileRequest) -> Iterator[_Part]:
    """Open the incomplete file before its held bytes are counted.

    Otherwise another writer could complete and rename it in between.
    """
    path, size = folder / file["name"], file["size"]
    whole = path.stat().st_size if path.exists() else None
    if whole == size and not file["corrupt"]:
        yield _Part(path, size, size, None)
        return
    # The file is not truncated, since another writer may have written further.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    with os.fdopen(os.open(_get_part_path(path), flags, 0o644), "r+b") as part:
        with suppress(PermissionError):
            os.fchmod(part.fileno(), 0o644)
        there = os.fstat(part.fileno()).st_size
        held = count_held_bytes(size, there, corrupt=file["corrupt"])
        yield _Part(path, size, held, part)


def _get_part_path(path: Path) -> Path:
    return path.with_name(path.name + _PART)


def _make_folders(folder: Path) -> None:
    """Make a folder below the home and its missing parents, readable for every user.

    Root may be the reader, and a network file system treats root as an unknown user.
    """
    home = Path.home()
    for level in (*reversed(folder.parents), folder):
        if home in level.parents:
            level.mkdir(exist_ok=True)
            with suppress(PermissionError):
                level.chmod(0o755)


def _copy(source: BinaryIO, target: BinaryIO, count: int) -> None:
    while count > 0:
        content = source.read(min(count, CHUNK_BYTES))
        if not content:
            raise EOFError(f"the stream ended {count} bytes early")
        target.write(content)
        count -= len(content)


def main() -> None:
    """Serve the request on standard input."""
    source, out = sys.stdin.buffer, sys.stdout.buffer
    request: TransferRequest = json.loads(source.readline())
    folder = Path.home() / request["folder"]
    try:
        if request["operation"] == "read":
            read_files(folder, request["files"], out)
        else:
            write_files(folder, request["files"], source, out)
    except (OSError, EOFError) as error:
        sys.exit(f"{error}")


if __name__ == "__main__":
    main()
