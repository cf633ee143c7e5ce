"""Execution of one run in a process of its own.

A run's sandbox is forked, which requires a single-threaded process. A caller that makes many runs
has threads, and must not keep the state of earlier runs.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from laggard.run_folder.fidelity_checks import FidelityPolicy
from laggard.supervision.interrupts import interrupt_on_signals

TIMED_OUT = "timed out"
_TERMINATION_TIMEOUT_S = 10.0
_TICK_S = 1.0


@dataclass(frozen=True)
class SubprocessRun:
    """Result of a run in a process of its own.

    Attributes:
        status: exit status of the process
        result: document that `laggard run --json` wrote; None if there was none
        errors: standard error of the process, if it was captured
    """

    status: int
    result: Mapping[str, object] | None
    errors: str = ""


def run_in_subprocess(
    scenario: Path,
    overrides: Sequence[str],
    runs: Path,
    *,
    command: Sequence[str] = ("run",),
    timeout_s: float | None = None,
    capture_errors: bool = False,
    fidelity: FidelityPolicy = "require",
    on_tick: Callable[[], object] | None = None,
) -> SubprocessRun:
    """Run a scenario in a new process and wait for its end.

    A signal that ends this process ends the run first, so that no run continues unattended.

    Args:
        scenario: folder of the scenario
        overrides: values of `--set`
        runs: folder of the run folders
        command: command of `laggard` that takes a scenario, with its own options
        timeout_s: real seconds after which the run is ended; it then has no result, and `errors`
            is `TIMED_OUT`
        capture_errors: True to return standard error; otherwise it goes to that of this process
        fidelity: reaction to a failed fidelity check before training
        on_tick: function to call about once a second until the run ends

    Raises:
        KeyboardInterrupt: SIGINT, SIGTERM or SIGHUP arrived
    """
    words = build_run_words(scenario, overrides, runs, command, fidelity)
    with (
        interrupt_on_signals(),
        subprocess.Popen(
            [sys.executable, "-m", "laggard", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if capture_errors else None,
            text=True,
        ) as run,
    ):
        try:
            output, errors = _communicate(run, timeout_s, on_tick)
        except subprocess.TimeoutExpired:
            _terminate(run)
            return SubprocessRun(run.returncode, None, TIMED_OUT)
        # Any exception, an interrupt included, must end the run too.
        except BaseException:
            _terminate(run)
            raise
    return SubprocessRun(run.returncode, parse_result(output), errors or "")


def build_run_words(
    scenario: Path,
    overrides: Sequence[str],
    runs: Path,
    command: Sequence[str],
    fidelity: FidelityPolicy,
) -> list[str]:
    """Return the words that follow `laggard`; see `run_in_subprocess` for the arguments."""
    words = [*command, str(scenario), "--json", "--runs", str(runs), "--fidelity", fidelity]
    return [*words, *(word for override in overrides for word in ("--set", override))]


def _communicate(
    run: subprocess.Popen[str], timeout_s: float | None, on_tick: Callable[[], object] | None
) -> tuple[str, str]:
    if on_tick is None:
        return run.communicate(timeout=timeout_s)
    ends_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    while True:
        try:
            # A call that timed out loses no output.
            return run.communicate(timeout=_TICK_S)
        except subprocess.TimeoutExpired:
            if time.monotonic() > ends_s:
                raise
        on_tick()


def _terminate(run: subprocess.Popen[str]) -> None:
    run.terminate()
    with suppress(subprocess.TimeoutExpired):
        run.wait(_TERMINATION_TIMEOUT_S)
    # A run that ignores SIGTERM is killed; the kernel then removes its sandbox.
    run.kill()
    run.wait()


def parse_result(output: str) -> Mapping[str, object] | None:
    """Parse the document of `run`, or the last line of the documents of `emulate`."""
    for text in (output, output.strip().rpartition("\n")[2]):
        with suppress(json.JSONDecodeError):
            result = json.loads(text)
            return result if isinstance(result, dict) else None
    return None
