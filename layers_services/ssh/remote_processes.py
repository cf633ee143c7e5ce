"""Long-lived processes, one per machine, started over SSH by execo and controlled by lines."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from laggard.core.errors import DeploymentError
from laggard.layers_services.machine import Machine

if TYPE_CHECKING:
    from execo import SshProcess
    from execo.process import ProcessLifecycleHandler, ProcessOutputHandler

_END_PATIENCE_S = 10.0


@dataclass(frozen=True)
class OutputLine:
    """Line of a machine's process.

    `line` is None if the process has ended. `last_words` then has its last lines on standard
    error.
    """

    machine: str
    line: str | None
    last_words: str = ""


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
        from execo import SshProcess
        from execo.log import logger

        logger.setLevel("ERROR")
        self._heard: queue.SimpleQueue[OutputLine] = queue.SimpleQueue()
        self._last_words: dict[str, list[str]] = {machine.alias: [] for machine in machines}
        connection = {"ssh_options": ("-F", str(ssh_config), "-T")}
        self._processes: dict[str, SshProcess] = {}
        self._writing = {machine.alias: threading.Lock() for machine in machines}
        for machine in machines:
            process = SshProcess(
                commands[machine.alias],
                machine.alias,
                connection_params=connection,
                default_stdout_handler=False,
                default_stderr_handler=False,
                nolog_exit_code=True,
                nolog_error=True,
                nolog_write_error=True,
            )
            process.stdout_handlers.append(
                _create_output_handler(self, machine.alias, errors=False)
            )
            process.stderr_handlers.append(_create_output_handler(self, machine.alias, errors=True))
            process.lifecycle_handlers.append(_create_end_handler(self, machine.alias))
            self._processes[machine.alias] = process

    def start(self) -> None:
        """Start all processes; failures are reported by `poll_events`."""
        for process in self._processes.values():
            process.start()

    def write(self, machine: str, line: str) -> None:
        """Send a line to a machine's process; a process that has ended is skipped.

        Raises:
            DeploymentError: there is no process on this machine
        """
        if machine not in self._processes:
            raise DeploymentError(f"{machine}: no process was started on this machine")
        process = self._processes[machine]
        if not process.ended:
            # A pipe splits long lines, so another thread could write between the pieces.
            with self._writing[machine]:
                process.write(f"{line}\n")

    def poll_events(self, timeout_s: float) -> OutputLine | None:
        """Return the next line of any process; None if none arrives within `timeout_s` seconds."""
        try:
            return self._heard.get(timeout=timeout_s) if timeout_s > 0 else self._heard.get_nowait()
        except queue.Empty:
            return None

    def close(self) -> None:
        """Close all processes and wait up to ten seconds for their end."""
        for process in self._processes.values():
            if process.running:
                process.kill()
        for process in self._processes.values():
            process.wait(timeout=_END_PATIENCE_S)

    def take(self, machine: str, line: str, *, error: bool) -> None:
        """Record a line that a process wrote; execo's thread calls this."""
        if error:
            # The last 25 lines suffice for an error message and bound the memory.
            self._last_words[machine] = [*self._last_words[machine][-24:], line]
        else:
            self._heard.put(OutputLine(machine, line))

    def take_end(self, machine: str) -> None:
        """Record the end of a process; execo's thread calls this."""
        self._heard.put(OutputLine(machine, None, "\n".join(self._last_words[machine])))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _create_output_handler(
    processes: RemoteProcesses, machine: str, *, errors: bool
) -> ProcessOutputHandler:
    """Return the handler to which execo's thread passes the lines of one process."""
    from execo.process import ProcessOutputHandler

    class Reader(ProcessOutputHandler):  # type: ignore[misc]  # execo ships no types
        # Execo's signature.
        def read_line(self, process: SshProcess, stream: int, string: str) -> None:  # noqa: ARG002
            processes.take(machine, string, error=errors)

    return Reader()


def _create_end_handler(processes: RemoteProcesses, machine: str) -> ProcessLifecycleHandler:
    from execo.process import ProcessLifecycleHandler

    class End(ProcessLifecycleHandler):  # type: ignore[misc]  # execo ships no types
        def end(self, process: SshProcess) -> None:  # noqa: ARG002  # execo's signature
            processes.take_end(machine)

    return End()
