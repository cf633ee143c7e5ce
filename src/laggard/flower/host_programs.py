"""Programs in hosts of a running emulation, whose output is read line by line with its time."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from laggard.core.hosts import Host
from laggard.flower.message_log import ProgramLine
from laggard.layers_services.local import held_command
from laggard.layers_services.local.namespaces import HostNamespaces

_READ_BYTES = 1 << 16
_MOST_CHARACTERS = 4000
_POLL_S = 0.5
_ENDING_S = 5.0


@dataclass
class HostProgram:
    """Program in a host.

    Attributes:
        name: name of the program, which its lines have.
        process: its process.
        lines: its output so far.
        is_read: whether all of its output was read.
    """

    name: str
    process: subprocess.Popen[bytes]
    lines: list[str] = field(default_factory=list)
    is_read: bool = False
    _rest: bytes = b""

    @property
    def status(self) -> int | None:
        """Exit status of the program; None while it runs."""
        return self.process.poll()

    def take(self, data: bytes) -> list[str]:
        """Return the lines that some output completes; no data completes the last one."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        if (not data and self._rest) or len(self._rest) > _READ_BYTES:
            whole.append(self._rest)
            self._rest = b""
        lines = [each.decode(errors="replace")[:_MOST_CHARACTERS] for each in whole]
        self.lines += lines
        return lines


@dataclass
class HostPrograms:
    """Programs in hosts of an emulation; they end with this value.

    Attributes:
        control_folder: run folder of the emulation, which holds programs to CPU shares.
        namespaces: namespaces of the hosts.
        write_line: function that gets every line of every program.
    """

    control_folder: Path
    namespaces: HostNamespaces
    write_line: Callable[[ProgramLine], None]
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _started: list[HostProgram] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        running = [each.process for each in self._started if each.status is None]
        for process in running:
            process.terminate()
        ends_s = time.monotonic() + _ENDING_S
        while time.monotonic() < ends_s and any(each.poll() is None for each in running):
            self.read(_POLL_S)
        for program in self._started:
            if program.status is None:
                program.process.kill()
                program.process.wait()
        self._selector.close()

    def start(
        self,
        name: str,
        host: Host,
        words: Sequence[str],
        environment: Mapping[str, str],
        *,
        is_held: bool = True,
    ) -> HostProgram:
        """Start a program in a host.

        Args:
            name: name of the program.
            host: the host.
            words: program and its arguments.
            environment: its whole environment.
            is_held: whether it is held to the CPU share of the host.
        """
        own = self.namespaces
        entered = [f"--net={own.path(host.name)}", f"--uts={own.uts_path(host.name)}"]
        hold = [sys.executable, "-I", "-S", held_command.__file__, str(self.control_folder)]
        process = subprocess.Popen(
            [*([*hold, host.name] if is_held else []), "nsenter", *entered, "--", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environment),
        )
        program = HostProgram(name, process)
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        self._selector.register(process.stdout, selectors.EVENT_READ, program)
        self._started.append(program)
        return program

    def read(self, timeout_s: float = _POLL_S) -> None:
        """Read what the programs have written, or wait for it."""
        if not self._selector.get_map():
            time.sleep(timeout_s)
            return
        for key, _ in self._selector.select(timeout_s):
            program: HostProgram = key.data
            data = os.read(key.fd, _READ_BYTES)
            at_ns = time.monotonic_ns()
            for text in program.take(data):
                self.write_line(ProgramLine(program.name, at_ns, text))
            if not data:
                program.is_read = True
                self._selector.unregister(key.fileobj)

    def wait(self, program: HostProgram, check: Callable[[], None]) -> int:
        """Read until a program has ended, and return its exit status.

        Args:
            program: the program.
            check: function that raises if the others can no longer be of use.
        """
        while (status := program.status) is None:
            self.read()
            check()
        ends_s = time.monotonic() + _ENDING_S
        while not program.is_read and time.monotonic() < ends_s:
            self.read()
        return status
