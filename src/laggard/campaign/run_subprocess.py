"""One run in a process of its own: its sandbox is forked, and who makes many runs has threads, and
should keep nothing of the last.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from laggard.run_folder.fidelity_checks import FidelityPolicy
from laggard.supervision.interrupts import interrupt_on_signals

TIMED_OUT = "took too long"
_TERMINATION_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class SubprocessRun:
    """What became of it.

    Attributes:
        status: of its process.
        result: what `laggard run --json` has told; None where it told nothing.
        errors: what it said beside, where that was kept.
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
) -> SubprocessRun:
    """Make a run, and wait for it. A signal that ends this process ends the run first, so that none
    is left going that nobody waits for.

    Args:
        scenario: its folder.
        overrides: as after `--set`.
        runs: the folder of run folders.
        command: command of `laggard` that takes a scenario, with its own options.
        timeout_s: real seconds after which it is ended; it has told nothing then, and `errors` is
            `TIMED_OUT`.
        capture_errors: whether what it says beside is returned; else it goes where this process's
            does.
        fidelity: what a failed fidelity check does before training.

    Raises:
        KeyboardInterrupt: SIGINT, SIGTERM or SIGHUP has come.
    """
    arguments = [
        sys.executable,
        "-m",
        "laggard.cli.main",
        *command,
        str(scenario),
        "--json",
        "--runs",
        str(runs),
        "--fidelity",
        fidelity,
    ]
    arguments += [word for override in overrides for word in ("--set", override)]
    with (
        interrupt_on_signals(),
        subprocess.Popen(
            arguments,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if capture_errors else None,
            text=True,
        ) as run,
    ):
        try:
            output, errors = run.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            _terminate(run)
            return SubprocessRun(run.returncode, None, TIMED_OUT)
        except BaseException:
            _terminate(run)
            raise
    return SubprocessRun(run.returncode, _parse_result(output), errors or "")


def _terminate(run: subprocess.Popen[str]) -> None:
    run.terminate()
    with suppress(subprocess.TimeoutExpired):
        run.wait(_TERMINATION_TIMEOUT_S)
    run.kill()
    run.wait()


def _parse_result(output: str) -> Mapping[str, object] | None:
    """Parse the document of `run`, or the last of the documents that `emulate` writes, one a
    line.
    """
    for text in (output, output.strip().rpartition("\n")[2]):
        with suppress(json.JSONDecodeError):
            result = json.loads(text)
            return result if isinstance(result, dict) else None
    return None
