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

from laggard.experiments.ended_by_signals import ended_by_signals

TOO_LONG = "took too long"
_ENDING_S = 10.0


@dataclass(frozen=True)
class Ended:
    """What became of it.

    Attributes:
        status: of its process.
        answer: what `laggard run --json` has told; None where it told nothing.
        errors: what it said beside, where that was kept.
    """

    status: int
    answer: Mapping[str, object] | None
    errors: str = ""


def run_apart(
    scenario: Path,
    overrides: Sequence[str],
    runs: Path,
    *,
    limit_s: float | None = None,
    keeps_errors: bool = False,
) -> Ended:
    """Make a run, and wait for it. A signal that ends this process ends the run first, so that none
    is left going that nobody waits for.

    Args:
        scenario: its folder.
        overrides: as after `--set`.
        runs: the folder of run folders.
        limit_s: real seconds after which it is ended; it has told nothing then, and `errors` is
            `TOO_LONG`.
        keeps_errors: whether what it says beside is returned; else it goes where this process's
            does.

    Raises:
        KeyboardInterrupt: SIGINT, SIGTERM or SIGHUP has come.
    """
    command = [
        sys.executable,
        "-m",
        "laggard.experiments.cli",
        "run",
        str(scenario),
        "--json",
        "--runs",
        str(runs),
    ]
    command += [word for override in overrides for word in ("--set", override)]
    with (
        ended_by_signals(),
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if keeps_errors else None,
            text=True,
        ) as run,
    ):
        try:
            told, errors = run.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            _end(run)
            return Ended(run.returncode, None, TOO_LONG)
        except BaseException:
            _end(run)
            raise
    return Ended(run.returncode, _answer(told), errors or "")


def _end(run: subprocess.Popen[str]) -> None:
    run.terminate()
    with suppress(subprocess.TimeoutExpired):
        run.wait(_ENDING_S)
    run.kill()
    run.wait()


def _answer(told: str) -> Mapping[str, object] | None:
    try:
        answer = json.loads(told)
    except json.JSONDecodeError:
        return None
    return answer if isinstance(answer, dict) else None
