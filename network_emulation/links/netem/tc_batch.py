"""Persistent `tc` in a host's namespace, so that a change does not start a program."""

from __future__ import annotations

import select
import subprocess
from collections.abc import Sequence

from laggard.core.errors import EmulationError

_SENTINEL = "qdisc show dev lo invisible\n"
"""Command that prints one line, after all earlier commands are done, provided that `lo` is up."""


class TcBatch:
    """One running `tc -batch -`.

    Args:
        host: name of the host, for messages.
        prefix: arguments before `tc` that enter the host's namespace.
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
            raise EmulationError(f"{host}: cannot start tc: {error}") from error

    def feed(self, text: str) -> None:
        """Send commands as whole lines without the word `tc`; then call `wait_until_applied`.

        Raises:
            EmulationError: if the process has ended.
        """
        assert self._process.stdin is not None
        self._fed = text
        try:
            self._process.stdin.write((text + _SENTINEL).encode())
        except OSError as error:
            raise EmulationError(
                f"{self._host}: tc has exited: {self._last_words() or error}"
            ) from error

    def wait_until_applied(self, limit_s: float) -> None:
        """Wait until the commands that were sent have taken effect.

        Args:
            limit_s: longest time to wait.

        Raises:
            EmulationError: if a command failed, which ends this process, or `limit_s` passed.
        """
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], limit_s)[0]:
            raise EmulationError(f"{self._host}: tc did not change the queues within {limit_s:g} s")
        if not self._process.stdout.read(4096):
            raise EmulationError(
                f"{self._host}: tc failed: {format_failure(self._last_words(), self._fed)}"
            )

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _last_words(self) -> str:
        self._process.kill()
        return self._process.communicate()[1].decode(errors="replace")


def format_failure(said: str, text: str) -> str:
    """Return the error output of a `tc` batch, with the line that failed."""
    lines = text.splitlines()
    number = said.rpartition("Command failed -:")[2].strip()
    failed = (
        f" in `{lines[int(number) - 1]}`"
        if number.isdigit() and 0 < int(number) <= len(lines)
        else ""
    )
    return " ".join(said.split()) + failed
