"""Output to a terminal: printable characters only, and never the reason why a run fails.

Names and messages in a run folder may come from a stranger, and control characters in them could
move the cursor, rename the window or hide text.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import TextIO

from laggard.core.errors import escape_unprintable
from laggard.core.text.standard_streams import discard_descriptor


def print_text(text: str, *, err: bool = False) -> None:
    """Print lines to standard output or standard error.

    If the stream cannot be written to (its reader has ended, or its disk is full), this and all
    later output to it is discarded, so that a run of hours continues.
    """
    stream = sys.stderr if err else sys.stdout
    # The interpreter has no stream if its descriptor was closed when it started.
    if stream is None:
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    shown = escape_lines(text).encode(encoding, "backslashreplace").decode(encoding)
    try:
        stream.write(f"{shown}\n")
        stream.flush()
    except (OSError, ValueError):
        discard_output(stream)


def escape_lines(text: str) -> str:
    """Return `text` with every unprintable character except line breaks written as an escape."""
    return "\n".join(escape_unprintable(line) for line in text.split("\n"))


def discard_output(stream: TextIO) -> None:
    """Redirect a stream that cannot be written to, so that later writes and the exit succeed."""
    with suppress(OSError, ValueError, AttributeError):
        discard_descriptor(stream.fileno())


class TerminalHandler(logging.Handler):
    """Handler that prints log records to standard error (see `print_text`)."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        try:
            print_text(self.format(record), err=True)
        except Exception:  # noqa: BLE001 - as in every handler, logging must not end the program
            self.handleError(record)
