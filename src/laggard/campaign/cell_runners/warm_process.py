"""Process that has imported what a run on this machine needs, and forks for every run.

A `laggard run` imports torch, pyarrow and matplotlib anew: its controller before the workers are
forked, its analysis after the training. Here they are imported once. Every run is still a process
of its own, forked from one that has never run anything, so no run sees the state of another.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from laggard.campaign.run_subprocess import SubprocessRun, parse_result
from laggard.core.files.input_files import read_bounded
from laggard.layers_services.local.launch import Exit, ForkServer, ProcessSpec
from laggard.supervision.interrupts import interrupt_on_signals
from laggard.workloads.plan import ENVIRONMENT, PRELOAD

RUN_MODULES = (
    *PRELOAD,
    "laggard.cli.main",
    "laggard.emulate.emulation",
    "laggard.run.runner",
    "laggard.run.straggler_watcher",
    "laggard.run_folder.analyze",
    "laggard.run_folder.collect",
    "laggard.run_folder.strategy_estimates",
    "laggard.workloads.tracing.collect",
    "laggard.analysis.findings.analyze_run",
    "laggard.analysis.findings.answer",
    "laggard.analysis.findings.rank_summary",
    "laggard.analysis.formats.export.perfetto",
    "laggard.analysis.formats.registry",
    "laggard.analysis.report.figures.registry",
    "laggard.analysis.report.page",
    "laggard.analysis.tables.load_run",
    "jinja2",
    "matplotlib.backends.backend_agg",
    "pandas",
)
"""Modules that a run imports sooner or later."""

_PREFIX = "started-"
_IMPORT_TIMEOUT_S = 300.0
_TERMINATION_TIMEOUT_S = 10.0
_TICK_S = 1.0


@contextmanager
def start_warm_process(parent: Path, modules: Sequence[str] = RUN_MODULES) -> Iterator[WarmProcess]:
    """Start the process that imports modules; it ends with the body, and with this process.

    This process must have one thread, so start it before anything that starts threads. The imports
    go on in the background until the first run.

    Args:
        parent: folder for a temporary folder, which only one process uses at a time. What a killed
            process has left there is removed.
        modules: modules to import.

    Raises:
        DeploymentError: this process has several threads, or cannot fork.
    """
    before = dict(os.environ)
    for left in parent.glob(f"{_PREFIX}*"):
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent.absolute()) as folder:
        # The imports read these variables, and the process inherits them.
        os.environ.update(ENVIRONMENT)
        try:
            server = ForkServer.start(modules, Path(folder) / "imports.log")
        finally:
            os.environ.clear()
            os.environ.update(before)
        with server:
            yield WarmProcess(server, Path(folder))


@dataclass(frozen=True)
class WarmProcess:
    """Process that forks runs; made by `start_warm_process`.

    Attributes:
        server: the process.
        folder: temporary folder for the output of runs.
    """

    server: ForkServer
    folder: Path

    @property
    def pid(self) -> int:
        """Return the process id of the parent of all runs."""
        return self.server.pid

    def run(
        self, words: Sequence[str], on_tick: Callable[[], object] | None = None
    ) -> SubprocessRun:
        """Run a command of `laggard` and wait for its end.

        A signal that ends this process ends the command first. If this process is killed, the
        command is killed too.

        Args:
            words: command with its options, with `--json` among them.
            on_tick: function to call about once a second.

        Raises:
            DeploymentError: the imports failed, or the process was ended.
            KeyboardInterrupt: SIGINT, SIGTERM or SIGHUP arrived.
        """
        self.server.wait_ready(_IMPORT_TIMEOUT_S)
        output, errors = self.folder / "output", self.folder / "errors"
        for path in (output, errors):
            path.unlink(missing_ok=True)
        argument = json.dumps(
            {"words": list(words), "output": str(output), "folder": str(Path.cwd())}
        )
        spec = ProcessSpec("laggard-run", "", f"{__name__}:run_command", argument, {}, errors)
        with interrupt_on_signals():
            pid = self.server.spawn(spec)
            try:
                ended = self._wait(pid, on_tick)
            # Any exception, an interrupt included, must end the run too.
            except BaseException:
                self._terminate(pid)
                raise
        text = read_bounded(output).decode() if output.exists() else ""
        said = read_bounded(errors).decode(errors="replace") if errors.exists() else ""
        return SubprocessRun(ended.status, parse_result(text), said)

    def _wait(self, pid: int, on_tick: Callable[[], object] | None) -> Exit:
        while True:
            for each in self.server.exits(_TICK_S):
                if each.pid == pid:
                    return each
            if on_tick is not None:
                on_tick()

    def _terminate(self, pid: int) -> None:
        deadline_s = time.monotonic() + _TERMINATION_TIMEOUT_S
        running = self.server.kill(pid, signal.SIGTERM)
        while running and time.monotonic() < deadline_s:
            running = all(each.pid != pid for each in self.server.exits(_TICK_S))
        # A run that ignores SIGTERM is killed; the kernel then removes its sandbox.
        self.server.kill(pid)


def run_command(argument: str) -> None:
    """Run `python -m laggard` in this process; entry of the forked process."""
    request = json.loads(argument)
    os.chdir(request["folder"])
    descriptor = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(descriptor, sys.stdout.fileno())
    os.close(descriptor)
    sys.argv = ["laggard", *request["words"]]
    runpy.run_module("laggard", run_name="__main__", alter_sys=True)
