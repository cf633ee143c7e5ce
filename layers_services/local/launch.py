"""Start of a run's processes by forks of one process that has already imported their modules.

Importing torch and `torch._dynamo` takes seconds and a hundred megabytes per process. A rank that
is forked from a process with these imports starts in milliseconds and shares their memory.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Self

from laggard.core.errors import DeploymentError
from laggard.layers_services.local.fork_server import (
    Exit,
    ForkServerAnswer,
    ForkServerReady,
    Kill,
    Message,
    ProcessSpec,
    Spawn,
    serve_requests,
)
from laggard.layers_services.local.forked import end_with, fork_process

__all__ = ["Exit", "ForkServer", "ProcessSpec"]

_CLOSE_PATIENCE_S = 5.0


class ForkServer:
    """Process that imports once and forks often; use it as a context manager.

    Children run in a session of their own with empty standard input. They are killed when the
    server or its creator dies.
    """

    def __init__(self, connection: Connection, pid: int) -> None:
        self._connection = connection
        self._pid = pid
        self._exits: deque[Exit] = deque()
        self._import_s: float | None = None
        self._closed = False

    @classmethod
    def start(cls, preload: Sequence[str], log: Path | None = None) -> Self:
        """Fork the server, which then imports modules in the background.

        Args:
            preload: modules to import; importing them must not start threads
            log: file for the output of the imports; None keeps standard output and error

        Raises:
            DeploymentError: the calling process has several threads
        """
        ours, theirs = Pipe()
        parent = os.getpid()
        pid = fork_process("starting the fork server")
        if pid == 0:
            ours.close()
            end_with(lambda: serve_requests(theirs, tuple(preload), log, parent))
        theirs.close()
        return cls(ours, pid)

    @property
    def pid(self) -> int:
        """Return the server's process id."""
        return self._pid

    def wait_ready(self, timeout_s: float) -> float:
        """Wait until the imports are complete.

        Returns:
            Duration of the imports in seconds.

        Raises:
            DeploymentError: an import failed or started threads, or `timeout_s` seconds passed
        """
        deadline = time.monotonic() + timeout_s
        while self._import_s is None:
            if not self._connection.poll(max(0.0, deadline - time.monotonic())):
                raise DeploymentError(
                    f"the fork server has not completed its imports within {timeout_s:g} s"
                )
            self._take(self._receive())
        return self._import_s

    def spawn(self, spec: ProcessSpec) -> int:
        """Start a process, once the imports are complete, and return its id.

        Raises:
            DeploymentError: the server refuses the request or has ended
        """
        return self._send_request(Spawn(spec))

    def exits(self, timeout_s: float = 0.0) -> list[Exit]:
        """Return the processes that ended since the last call.

        Args:
            timeout_s: longest wait in seconds for the first of them

        Raises:
            DeploymentError: the server has ended
        """
        patience_s = 0.0 if self._exits else timeout_s
        while self._connection.poll(patience_s):
            self._take(self._receive())
            patience_s = 0.0 if self._exits else patience_s
        ended = list(self._exits)
        self._exits.clear()
        return ended

    def kill(self, pid: int, number: int = signal.SIGKILL) -> bool:
        """Signal a process of this server; return False if it has already ended.

        Raises:
            DeploymentError: the server has ended
        """
        return bool(self._send_request(Kill(pid, number)))

    def close(self) -> None:
        """End the server and every process that it started."""
        if self._closed:
            return
        self._closed = True
        self._connection.close()
        deadline = time.monotonic() + _CLOSE_PATIENCE_S
        while os.waitpid(self._pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
                return
            time.sleep(0.005)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send_request(self, request: Message) -> int:
        try:
            self._connection.send(request)
        except OSError as error:
            self._read_last_words()
            raise self._make_exit_error() from error
        while True:
            message = self._receive()
            # Exits can arrive before the answer; they are kept for the next call of `exits`.
            if isinstance(message, ForkServerAnswer):
                if message.refusal:
                    raise DeploymentError(message.refusal)
                return message.number
            self._take(message)

    def _read_last_words(self) -> None:
        """Read pending messages, among them the reason why the server ended."""
        while self._connection.poll():
            self._take(self._receive())

    def _receive(self) -> Message:
        try:
            message: Message = self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._make_exit_error() from error
        return message

    def _take(self, message: Message) -> None:
        if isinstance(message, Exit):
            self._exits.append(message)
        elif isinstance(message, ForkServerReady):
            self._import_s = message.import_s
        elif isinstance(message, ForkServerAnswer):
            raise DeploymentError(message.refusal)

    def _make_exit_error(self) -> DeploymentError:
        return DeploymentError(
            f"the fork server (process {self._pid}) has ended, and its child processes with it"
        )
