"""Execution of commands on hosts and on the fabric between them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from laggard.core.errors import EmulationError
from laggard.network_emulation.links.netem.tc_batch import TcBatch, format_failure

NAMED_NAMESPACES = Path("/run/netns")
_LIMIT_S = 60.0


class Execute(Protocol):
    """Interface that runs commands on hosts."""

    def __call__(self, host: str | None, command: Sequence[str], text: str = "") -> str:
        """Run a command and wait for it.

        Args:
            host: name of the host; None is the fabric between the hosts (the bridge of a local
                run).
            command: arguments, never a shell line.
            text: standard input of the command.

        Returns:
            Standard output of the command.

        Raises:
            EmulationError: if the command failed; with its error output.
        """

    def expect_changes(self, hosts: Iterable[str]) -> None:
        """Prepare these hosts, so that their first change is as fast as later ones."""

    def change(self, batches: Mapping[str, str]) -> None:
        """Run lines of `tc` commands on several hosts at once, until all take effect.

        Raises:
            EmulationError: if a command failed; with its error output.
        """

    def close(self) -> None:
        """Release resources; no further command will be run."""


@dataclass(frozen=True)
class InNamespaces:
    """Executor in the network namespaces of a local run, by nsenter(1)."""

    namespaces: Mapping[str, Path]
    _batches: dict[str, TcBatch] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def named(cls, hosts: Iterable[str]) -> InNamespaces:
        """Return an executor for namespaces that ip-netns(8) has bound under the hosts' names."""
        return cls({host: NAMED_NAMESPACES / host for host in hosts})

    def __call__(self, host: str | None, command: Sequence[str], text: str = "") -> str:
        """Run a command and wait for it; see `Execute`."""
        try:
            done = subprocess.run(
                (*self._prefix(host), *command),
                input=text,
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EmulationError(f"{host or 'fabric'}: {' '.join(command)}: {error}") from error
        if done.returncode != 0:
            reason = format_failure(done.stderr, text)
            raise EmulationError(f"{host or 'fabric'}: {' '.join(command)} failed: {reason}")
        return done.stdout

    def expect_changes(self, hosts: Iterable[str]) -> None:
        """Start a waiting `tc` in each namespace; see `Execute`."""
        for host in hosts:
            self._batch(host)

    def change(self, batches: Mapping[str, str]) -> None:
        """Run `tc` lines on several hosts; see `Execute`."""
        try:
            # Feed all hosts before waiting for any, so that their changes run in parallel.
            for host, text in batches.items():
                self._batch(host).feed(text)
            for host in batches:
                self._batches[host].wait_until_applied(_LIMIT_S)
        except EmulationError:
            # Late output of the other processes must not be taken for the answer to a later change.
            self.close()
            raise

    def close(self) -> None:
        """End the waiting `tc` processes; see `Execute`."""
        for batch in self._batches.values():
            batch.close()
        self._batches.clear()

    def _batch(self, host: str) -> TcBatch:
        if host not in self._batches:
            # TcBatch recognizes the end of a batch by tc's output about `lo`, which is empty if
            # the device is down.
            self(host, ("ip", "link", "set", "dev", "lo", "up"))
            self._batches[host] = TcBatch(host, self._prefix(host))
        return self._batches[host]

    def _prefix(self, host: str | None) -> tuple[str, ...]:
        return () if host is None else ("nsenter", f"--net={self.namespaces[host]}")
