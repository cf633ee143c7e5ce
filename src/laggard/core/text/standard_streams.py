"""Standard streams of a command whose writes never fail.

The reader of a pipe may end, a disk may be full, a terminal may be closed, and a descriptor may be
closed from the start. None of these may end a run of hours. Everything that Python prints goes
through the streams of this module: text of Laggard and click, logs, warnings and tracebacks.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from contextlib import suppress
from pathlib import Path
from typing import TextIO

_STDIN, _STDOUT, _STDERR = 0, 1, 2
_absent: set[int] = set()


class SafeDescriptor(io.RawIOBase):
    """Raw end of a standard stream; it remembers a failed write, and discards all later output.

    Args:
        descriptor: descriptor to write to
        is_absent: whether the stream was closed from the start

    Attributes:
        error: reason why output was lost; None if there was none.
    """

    def __init__(self, descriptor: int, *, is_absent: bool) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._is_absent = is_absent
        self.error: OSError | None = None

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Return whether the descriptor is a terminal."""
        return os.isatty(self._descriptor)

    def write(self, data: object) -> int:
        """Write bytes, or discard them if that is not possible, and return their number."""
        view = memoryview(data)  # type: ignore[arg-type]  # a buffer, as for every raw stream
        if self._is_absent and self.error is None:
            self.error = OSError(errno.EBADF, os.strerror(errno.EBADF))
        while True:
            try:
                return os.write(self._descriptor, view)
            except BlockingIOError:
                # Another program made the pipe or terminal non-blocking for all its users.
                select.select([], [self._descriptor], [])
            except OSError as error:
                self.error = self.error or error
                discard_descriptor(self._descriptor)
                return view.nbytes


def protect_standard_streams() -> None:
    """Replace the standard streams by ones whose writes never fail.

    Closed descriptors are opened on `/dev/null` first. Otherwise the next file that is opened gets
    their number, and what some library prints would be written into it. Streams that are replaced
    already, as in tests, are kept.
    """
    for descriptor in (_STDIN, _STDOUT, _STDERR):
        _open_if_closed(descriptor)
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115 - for the whole process
    if sys.stdout is sys.__stdout__:
        sys.stdout = _make_safe(sys.stdout, _STDOUT)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _make_safe(sys.stderr, _STDERR)


def find_lost_output() -> OSError | None:
    """Return the reason why some of the standard output was lost; None if all was written."""
    stream = sys.stdout
    with suppress(OSError, ValueError):
        stream.flush()
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw.error if isinstance(raw, SafeDescriptor) else None


def close_absent_descriptors() -> None:
    """Close the standard descriptors that were closed from the start, for a program to execute."""
    for descriptor in _absent:
        with suppress(OSError):
            os.close(descriptor)


def discard_descriptor(descriptor: int) -> None:
    """Point a descriptor to `/dev/null`, so that later writes to it succeed."""
    null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.dup2(null, descriptor)
    finally:
        os.close(null)


def _open_if_closed(descriptor: int) -> None:
    try:
        os.fstat(descriptor)
    except OSError:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(null, descriptor)
        if null != descriptor:
            os.close(null)
        os.set_inheritable(descriptor, True)
        _absent.add(descriptor)


def _make_safe(stream: TextIO | None, descriptor: int) -> TextIO:
    """Return a safe stream for the one that the interpreter made; None if it made none."""
    is_absent = stream is None
    if stream is None and descriptor not in _absent:
        # A library has got the number of the closed descriptor before this function ran.
        descriptor = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    if stream is not None:
        with suppress(OSError, ValueError):
            stream.flush()
    raw = SafeDescriptor(descriptor, is_absent=is_absent)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding="utf-8" if stream is None else stream.encoding,
        errors="backslashreplace",
        line_buffering=descriptor == _STDERR or raw.isatty(),
    )
