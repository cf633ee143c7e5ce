"""A `tc` that stays in a host's namespace and takes commands as they come: a change then starts no
program.
"""

from __future__ import annotations

import select
import subprocess
from collections.abc import Sequence

from laggard.core.errors import EmulationError

_SENTINEL = "qdisc show dev lo invisible\n"
"""Prints one line, when all before it is done, where `lo` is up."""


class TcBatch:
    """One running `tc -batch -`.

    Args:
        host: for messages.
        prefix: arguments before `tc` that take it to the host's namespace.
    """

    def __init__(self, host: str, prefix: Sequence[str]) -> None:
        self._host = host
        self._fed = ""
        try:
            self._process = subprocess.Popen(
                (*prefix, "tc", "-batch", "-"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
            )
        except OSError as error:
            raise EmulationError(f"{host}: tc could not be started: {error}") from error

    def feed(self, text: str) -> None:
        """Hand commands over, whole lines without the word `tc`; `wait_until_applied` waits for
        them.
        """
        assert self._process.stdin is not None
        self._fed = text
        try:
            self._process.stdin.write((text + _SENTINEL).encode())
        except OSError as error:
            raise EmulationError(
                f"{self._host}: tc is gone: {self._last_words() or error}"
            ) from error

    def wait_until_applied(self, limit_s: float) -> None:
        """Wait until what was fed is in effect.

        Raises:
            EmulationError: a command failed, and this process ended with it; or `limit_s` passed.
        """
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], limit_s)[0]:
            raise EmulationError(f"{self._host}: tc has not changed its queues for {limit_s:g} s")
        if not self._process.stdout.read(4096):
            raise EmulationError(
                f"{self._host}: tc failed: {format_failure(self._last_words(), self._fed)}"
            )

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()

    def _last_words(self) -> str:
        self._process.kill()
        return self._process.communicate()[1].decode(errors="replace")


def format_failure(said: str, text: str) -> str:
    """What `tc` said of a batch, with the line that it complains about."""
    lines = text.splitlines()
    number = said.rpartition("Command failed -:")[2].strip()
    failed = (
        f" in `{lines[int(number) - 1]}`"
        if number.isdigit() and 0 < int(number) <= len(lines)
        else ""
    )
    return " ".join(said.split()) + failed
