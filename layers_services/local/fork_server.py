"""Server side of `launch`: it imports modules once and forks on request.

A fork copies only the calling thread. Therefore this process imports but never computes, and
refuses to fork while it has other threads.
"""

from __future__ import annotations

import gc
import importlib
import io
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

from laggard.core import linux
from laggard.core.errors import DeploymentError
from laggard.layers_services.local.forked import end_with, fork_process

# These libraries start one thread per core at import. A worker sets its own number later.
_NO_THREADS = {
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class ProcessSpec:
    """Process to start.

    Attributes:
        name: name in messages; `ps` shows its first 15 bytes
        host: name of the host that the process belongs to
        entry: `package.module:function`, which is called with `argument`
        argument: text argument of the entry
        environment: variables to add to the server's environment
        log: file that receives standard output and error
        network_namespace: file of the network namespace to enter; None for the server's own
        uts_namespace: file of the UTS namespace to enter; None for the server's own
        cpus: cores to run on; None for all
    """

    name: str
    host: str
    entry: str
    argument: str
    environment: Mapping[str, str]
    log: Path
    network_namespace: Path | None = None
    uts_namespace: Path | None = None
    cpus: frozenset[int] | None = None


@dataclass(frozen=True)
class Exit:
    """End of a process; `status` is its exit status, or minus the signal that killed it."""

    name: str
    pid: int
    status: int


@dataclass(frozen=True)
class Spawn:
    """Request to start a process."""

    spec: ProcessSpec


@dataclass(frozen=True)
class Kill:
    """Request to signal a process."""

    pid: int
    signal: int


@dataclass(frozen=True)
class ForkServerReady:
    """Message that the imports are complete."""

    import_s: float


@dataclass(frozen=True)
class ForkServerAnswer:
    """Answer to a request.

    `number` is the id of a started process; for a signal it is 1 if it was sent, else 0. `refusal`
    is the reason if the request was refused.
    """

    number: int = 0
    refusal: str = ""


Message = Spawn | Kill | ForkServerReady | ForkServerAnswer | Exit


def serve_requests(
    connection: Connection, preload: Sequence[str], log: Path | None, parent: int
) -> int:
    """Import the modules, then fork on request and report exits until the connection closes."""
    linux.die_with_parent(parent)
    os.setsid()
    linux.set_process_name("laggard-fork")
    # The caller's Python handlers would otherwise be inherited by the server and its children.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    if log is not None:
        _redirect_output(log)
    started = time.monotonic()
    try:
        _import_modules(preload)
    # Every exception of an import is reported to the caller.
    except BaseException as error:  # noqa: BLE001
        traceback.print_exc()
        connection.send(
            ForkServerAnswer(
                refusal=f"the fork server cannot import the workers' modules: {error!r}"
            )
        )
        return 1
    connection.send(ForkServerReady(time.monotonic() - started))
    return _Server(connection).run()


def _import_modules(preload: Sequence[str]) -> None:
    os.environ.update(_NO_THREADS)
    for module in preload:
        importlib.import_module(module)
    gc.collect()
    # Later collections skip frozen objects. Otherwise they would write to the shared pages, and the
    # kernel would copy them in every child.
    gc.freeze()


class _Server:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._children: dict[int, tuple[int, str]] = {}

    def run(self) -> int:
        while True:
            descriptors = {descriptor: pid for pid, (descriptor, _) in self._children.items()}
            ready = wait([self._connection, *descriptors])
            for each in ready:
                if isinstance(each, int):
                    self._reap(descriptors[each])
            if self._connection in ready and not self._answer():
                return 0

    def _answer(self) -> bool:
        try:
            request = self._connection.recv()
        except (EOFError, ConnectionResetError):
            return False
        if isinstance(request, Spawn):
            self._connection.send(self._spawn(request.spec))
        elif isinstance(request, Kill):
            self._connection.send(self._kill(request))
        return True

    def _spawn(self, spec: ProcessSpec) -> ForkServerAnswer:
        try:
            server = os.getpid()
            pid = fork_process("the fork server")
        except DeploymentError as error:
            return ForkServerAnswer(refusal=f"cannot start {spec.name}: {error}")
        if pid == 0:
            end_with(lambda: self._become(spec, server))
        # A pidfd becomes readable when the process ends, so `wait` covers children and requests.
        self._children[pid] = (os.pidfd_open(pid), spec.name)
        return ForkServerAnswer(pid)

    def _become(self, spec: ProcessSpec, server: int) -> int:
        linux.die_with_parent(server)
        self._connection.close()
        for descriptor, _ in self._children.values():
            os.close(descriptor)
        return _run_entry(spec)

    def _kill(self, request: Kill) -> ForkServerAnswer:
        if request.pid not in self._children:
            return ForkServerAnswer(0)
        os.kill(request.pid, request.signal)
        return ForkServerAnswer(1)

    def _reap(self, pid: int) -> None:
        descriptor, name = self._children.pop(pid)
        os.close(descriptor)
        _, status = os.waitpid(pid, 0)
        with suppress(BrokenPipeError):
            self._connection.send(Exit(name, pid, os.waitstatus_to_exitcode(status)))


def _run_entry(spec: ProcessSpec) -> int:
    os.setsid()
    linux.set_process_name(spec.name)
    _redirect_output(spec.log)
    if spec.network_namespace is not None:
        linux.enter_namespace(spec.network_namespace, linux.CLONE_NEWNET)
    if spec.uts_namespace is not None:
        linux.enter_namespace(spec.uts_namespace, linux.CLONE_NEWUTS)
    if spec.cpus is not None:
        os.sched_setaffinity(0, spec.cpus)
    os.environ.update(spec.environment)
    module, _, function = spec.entry.partition(":")
    getattr(importlib.import_module(module), function)(spec.argument)
    return 0


def _redirect_output(log: Path) -> None:
    """Append standard output and error to a file and make standard input empty."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for path, mode, targets in ((log, flags, (1, 2)), (Path(os.devnull), os.O_RDONLY, (0,))):
        descriptor = os.open(path, mode, 0o644)
        for target in targets:
            os.dup2(descriptor, target)
        os.close(descriptor)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
