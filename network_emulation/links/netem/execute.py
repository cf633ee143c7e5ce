"""Running commands on hosts and between them: the thin part under the netem backend."""

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
    """Runs one command on a host."""

    def __call__(self, host: str | None, command: Sequence[str], text: str = "") -> str:
        """Run a command and wait for it.

        Args:
            host: name of the host; None is the fabric between the hosts (the bridge of a local
                run).
            command: arguments, never a shell line.
            text: what it reads from its standard input.

        Returns:
            What it wrote to standard output.

        Raises:
            EmulationError: it failed; with what it said.
        """

    def expect_changes(self, hosts: Iterable[str]) -> None:
        """Do now what makes the first change of these hosts' queues as quick as later ones."""

    def change(self, batches: Mapping[str, str]) -> None:
        """Run lines of `tc` commands on several hosts at the same time, and wait until all are in
        effect.

        Raises:
            EmulationError: one failed; with what it said.
        """

    def close(self) -> None:
        """Nothing will be run any more."""


@dataclass(frozen=True)
class InNamespaces:
    """Runs commands in the network namespaces of a local run, by nsenter(1)."""

    namespaces: Mapping[str, Path]
    _batches: dict[str, TcBatch] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def named(cls, hosts: Iterable[str]) -> InNamespaces:
        """Hosts whose namespaces are bound where ip-netns(8) binds them, under the hosts' own
        names.
        """
        return cls({host: NAMED_NAMESPACES / host for host in hosts})

    def __call__(self, host: str | None, command: Sequence[str], text: str = "") -> str:
        """See `Execute`."""
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
        """See `Execute`: a `tc` waits in each namespace."""
        for host in hosts:
            self._batch(host)

    def change(self, batches: Mapping[str, str]) -> None:
        """See `Execute`."""
        try:
            for host, text in batches.items():
                self._batch(host).feed(text)
            for host in batches:
                self._batches[host].wait_until_applied(_LIMIT_S)
        except EmulationError:
            # what is still under way in others is not to be taken for the answer to a later change
            self.close()
            raise

    def close(self) -> None:
        """See `Execute`."""
        for batch in self._batches.values():
            batch.close()
        self._batches.clear()

    def _batch(self, host: str) -> TcBatch:
        if host not in self._batches:
            self(
                host, ("ip", "link", "set", "dev", "lo", "up")
            )  # tc tells nothing of a device that is down
            self._batches[host] = TcBatch(host, self._prefix(host))
        return self._batches[host]

    def _prefix(self, host: str | None) -> tuple[str, ...]:
        return () if host is None else ("nsenter", f"--net={self.namespaces[host]}")
