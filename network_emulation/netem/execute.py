"""Running commands on hosts and between them: the thin part under the netem backend."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from laggard.errors import EmulationError

NAMED_NAMESPACES = Path("/run/netns")
_LIMIT_S = 60.0


class Execute(Protocol):
    """Runs one command on a host."""

    def __call__(self, host: str | None, command: Sequence[str], text: str = "") -> str:
        """Run a command and wait for it.

        Args:
            host: name of the host; None is the fabric between the hosts (the bridge of a local run).
            command: arguments, never a shell line.
            text: what it reads from its standard input.

        Returns:
            What it wrote to standard output.

        Raises:
            EmulationError: it failed; with what it said.
        """


@dataclass(frozen=True)
class InNamespaces:
    """Runs commands in the network namespaces of a local run, by nsenter(1)."""

    namespaces: Mapping[str, Path]

    @classmethod
    def named(cls, hosts: Iterable[str]) -> InNamespaces:
        """Hosts whose namespaces are bound where ip-netns(8) binds them, under the hosts' own names."""
        return cls({host: NAMED_NAMESPACES / host for host in hosts})

    def __call__(self, host: str | None, command: Sequence[str], text: str = "") -> str:
        """See `Execute`."""
        where = () if host is None else ("nsenter", f"--net={self.namespaces[host]}")
        try:
            done = subprocess.run(
                (*where, *command), input=text, capture_output=True, text=True, timeout=_LIMIT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EmulationError(f"{host or 'fabric'}: {' '.join(command)}: {error}") from error
        if done.returncode != 0:
            raise EmulationError(f"{host or 'fabric'}: {' '.join(command)} failed: {_failure(done.stderr, text)}")
        return done.stdout


def _failure(said: str, text: str) -> str:
    """A batch's error with the line that it complains about."""
    lines = text.splitlines()
    number = said.rpartition("Command failed -:")[2].strip()
    failed = f" in `{lines[int(number) - 1]}`" if number.isdigit() and 0 < int(number) <= len(lines) else ""
    return " ".join(said.split()) + failed
