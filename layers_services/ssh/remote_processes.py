"""Long-lived processes, one per machine, started over SSH and controlled by lines.

One thread moves the bytes of all machines. A machine that writes endlessly, writes a line that is
too long, or reads nothing, uses a bounded amount of memory and stops no other machine.
"""

from __future__ import annotations

import os
import queue
import selectors
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self

from laggard.core.errors import DeploymentError
from laggard.core.node_values import escape_lines
from laggard.layers_services.machine import Machine

MOST_LINE_BYTES = 4 << 20
"""Longest line of a machine; the longest in use lists a run's files or the queues of a node."""

_MOST_WAITING_BYTES = MOST_LINE_BYTES
"""Bytes of a machine's lines that wait to be handled, from which on its output is not read."""

_LINE_COST_BYTES = 256
"""Bytes that every waiting line counts in addition, so that many short lines do not wait either."""

_MOST_UNSENT_BYTES = 256 << 20
"""Most bytes that wait to be sent to a machine. With more, the machine counts as lost."""

_MOST_ERROR_LINES = 25
_MOST_ERROR_LINE = 500
_CHUNK_BYTES = 1 << 16
_END_PATIENCE_S = 10.0


@dataclass(frozen=True)
class OutputLine:
    """Line of a machine's process.

    `line` is None if the process has ended. `last_words` then has its last lines on standard
    error, or, if it was ended here for what it did, `fault` has the reason.
    """

    machine: str
    line: bytes | None
    last_words: str = ""
    fault: str = ""


@dataclass
class _RemoteProcess:
    """Process of one machine.

    Attributes:
        machine: alias of the machine
        ssh: the running ssh; None before the start
        pending: beginning of a line whose end has not arrived
        unsent: bytes that wait to be sent
        waiting: bytes of lines that have not been handled
        errors: last lines on standard error
        open_outputs: number of output streams that have not ended
        fault: reason for which the process was ended here; empty if there is none
    """

    machine: str
    ssh: subprocess.Popen[bytes] | None = None
    pending: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    waiting: int = 0
    errors: list[str] = field(default_factory=list)
    open_outputs: int = 2
    fault: str = ""
    has_ended: bool = False


class RemoteProcesses:
    """Processes of all machines; use it as a context manager.

    Args:
        machines: machines that get one process each
        ssh_config: configuration file for ssh (`write_ssh_config`)
        commands: shell command of each machine, by the machine's alias
    """

    def __init__(
        self, machines: Sequence[Machine], ssh_config: Path, commands: Mapping[str, str]
    ) -> None:
        self._words = {
            machine.alias: (
                "ssh",
                "-F",
                str(ssh_config),
                "-T",
                machine.alias,
                commands[machine.alias],
            )
            for machine in machines
        }
        self._processes = {machine.alias: _RemoteProcess(machine.alias) for machine in machines}
        self._lines: queue.SimpleQueue[OutputLine] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._closing = False
        self._thread = threading.Thread(target=self._move_bytes, name="agent-lines", daemon=True)

    def start(self) -> None:
        """Start all processes; failures are reported by `poll_events`."""
        for process in self._processes.values():
            process.ssh = subprocess.Popen(
                self._words[process.machine],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # An interrupt of the terminal must not end the sessions before the data is fetched.
                start_new_session=True,
            )
            for stream in (process.ssh.stdin, process.ssh.stdout, process.ssh.stderr):
                assert stream is not None
                os.set_blocking(stream.fileno(), False)
            for stream in (process.ssh.stdout, process.ssh.stderr):
                self._selector.register(_require(stream), selectors.EVENT_READ, process)
        self._thread.start()

    def write(self, machine: str, line: str) -> None:
        """Send a line to a machine's process; a process that has ended is skipped.

        Raises:
            DeploymentError: there is no process on this machine
        """
        if machine not in self._processes:
            raise DeploymentError(f"{machine}: no process was started on this machine")
        process = self._processes[machine]
        with self._lock:
            if not process.has_ended and not process.fault:
                process.unsent += line.encode() + b"\n"
        self._wake()

    def end(self, machine: str, fault: str) -> None:
        """End a machine's process for a reason, which `poll_events` reports."""
        with self._lock:
            self._end_with_fault(self._processes[machine], fault)

    def poll_events(self, timeout_s: float) -> OutputLine | None:
        """Return the next line of any process; None if none arrives within `timeout_s` seconds."""
        try:
            event = (
                self._lines.get(timeout=timeout_s) if timeout_s > 0 else self._lines.get_nowait()
            )
        except queue.Empty:
            return None
        if event.line is not None:
            process = self._processes[event.machine]
            with self._lock:
                was_full = process.waiting >= _MOST_WAITING_BYTES
                process.waiting -= len(event.line) + _LINE_COST_BYTES
            if was_full:
                self._wake()
        return event

    def close(self) -> None:
        """Close all processes and wait up to ten seconds for their end."""
        started = [each.ssh for each in self._processes.values() if each.ssh is not None]
        for ssh in started:
            ssh.terminate()
        self._wake(closing=True)
        if self._thread.is_alive():
            self._thread.join(_END_PATIENCE_S)
        for ssh in started:
            try:
                ssh.wait(_END_PATIENCE_S)
            except subprocess.TimeoutExpired:
                ssh.kill()
                ssh.wait()
        if not self._thread.is_alive():
            self._close_descriptors(started)

    def _close_descriptors(self, started: Sequence[subprocess.Popen[bytes]]) -> None:
        self._selector.close()
        for descriptor in (self._wake_reader, self._wake_writer):
            os.close(descriptor)
        for ssh in started:
            for stream in (ssh.stdin, ssh.stdout, ssh.stderr):
                _require(stream).close()

    def _wake(self, *, closing: bool = False) -> None:
        # Afterwards the descriptor is closed, and its number may belong to another file.
        with self._lock:
            if self._closing:
                return
            self._closing = closing
            # An error means that the thread has not yet handled the previous call.
            with suppress(BlockingIOError):
                os.write(self._wake_writer, b"x")

    def _move_bytes(self) -> None:
        """Move the bytes of all machines until `close`."""
        while not self._closing:
            for key, _ in self._selector.select():
                if key.fd == self._wake_reader:
                    os.read(self._wake_reader, _CHUNK_BYTES)
                else:
                    self._handle_ready_stream(key.data, key.fd)
            self._update_interests()

    def _handle_ready_stream(self, process: _RemoteProcess, descriptor: int) -> None:
        assert process.ssh is not None
        if descriptor == _require(process.ssh.stdin).fileno():
            self._send(process)
        elif descriptor == _get_descriptor(process.ssh.stdout):
            self._receive(process, _require(process.ssh.stdout))
        else:
            self._receive(process, _require(process.ssh.stderr))

    def _update_interests(self) -> None:
        """Watch inputs that have bytes to send, and outputs of machines with room for lines."""
        with self._lock:
            for process in self._processes.values():
                if process.has_ended or process.ssh is None:
                    continue
                if len(process.unsent) > _MOST_UNSENT_BYTES:
                    self._end_with_fault(process, "it does not read what it is sent")
                self._watch(
                    _require(process.ssh.stdin), process, wanted=bool(process.unsent), write=True
                )
                stdout = _require(process.ssh.stdout)
                if not stdout.closed:
                    has_room = process.waiting < _MOST_WAITING_BYTES
                    self._watch(stdout, process, wanted=has_room, write=False)

    def _watch(
        self, stream: IO[bytes], process: _RemoteProcess, *, wanted: bool, write: bool
    ) -> None:
        if stream.closed:
            return
        known = stream in self._selector.get_map()
        if wanted and not known:
            event = selectors.EVENT_WRITE if write else selectors.EVENT_READ
            self._selector.register(stream, event, process)
        elif known and not wanted:
            self._selector.unregister(stream)

    def _send(self, process: _RemoteProcess) -> None:
        assert process.ssh is not None
        stdin = _require(process.ssh.stdin)
        with self._lock:
            try:
                sent = os.write(stdin.fileno(), process.unsent[:_CHUNK_BYTES])
            except BlockingIOError:
                return
            except OSError:
                # The process has ended; its outputs report it.
                sent = len(process.unsent)
            del process.unsent[:sent]

    def _receive(self, process: _RemoteProcess, stream: IO[bytes]) -> None:
        assert process.ssh is not None
        try:
            content = os.read(stream.fileno(), _CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            content = b""
        if not content:
            self._selector.unregister(stream)
            stream.close()
            process.open_outputs -= 1
            if process.open_outputs == 0:
                self._report_end(process)
        elif stream is process.ssh.stderr:
            lines = content.decode(errors="replace").splitlines()
            kept = [escape_lines(line[:_MOST_ERROR_LINE]) for line in lines]
            process.errors = [*process.errors, *kept][-_MOST_ERROR_LINES:]
        elif not process.fault:
            self._split_lines(process, content)

    def _split_lines(self, process: _RemoteProcess, content: bytes) -> None:
        *lines, rest = content.split(b"\n")
        for line in lines:
            self._report_line(process, bytes(process.pending) + line)
            process.pending.clear()
        process.pending += rest
        if len(process.pending) > MOST_LINE_BYTES:
            with self._lock:
                self._end_with_fault(
                    process, f"it wrote a line of more than {MOST_LINE_BYTES >> 20} MiB"
                )

    def _report_line(self, process: _RemoteProcess, line: bytes) -> None:
        with self._lock:
            process.waiting += len(line) + _LINE_COST_BYTES
        self._lines.put(OutputLine(process.machine, line))

    def _end_with_fault(self, process: _RemoteProcess, fault: str) -> None:
        process.fault = process.fault or fault
        process.pending.clear()
        process.unsent.clear()
        if process.ssh is not None:
            process.ssh.terminate()

    def _report_end(self, process: _RemoteProcess) -> None:
        assert process.ssh is not None
        with self._lock:
            process.has_ended = True
            process.unsent.clear()
        self._watch(_require(process.ssh.stdin), process, wanted=False, write=True)
        words = "\n".join(process.errors)
        self._lines.put(OutputLine(process.machine, None, words, process.fault))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _get_descriptor(stream: IO[bytes] | None) -> int:
    return -1 if stream is None or stream.closed else stream.fileno()


def _require(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream
