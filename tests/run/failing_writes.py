"""Runs in which the n-th change of a file below the run folder fails."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.command_line import Laggard

SOURCE = Path(__file__).with_suffix(".c")
needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")


def build_library(folder: Path) -> Path:
    """Compile the library that makes changes of files fail."""
    library = folder / "failing_writes.so"
    command = ["gcc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror"]
    subprocess.run([*command, "-o", str(library), str(SOURCE), "-ldl"], check=True)
    return library


@dataclass(frozen=True)
class FailingRun:
    """A run that has ended, and how many changes of files were tried in it."""

    status: int
    output: str
    errors: str
    changes: int


def run_with_failing_write(
    library: Path, laggard: Laggard, scenario: Path, fail_at: int, number: int
) -> FailingRun:
    """Run a scenario whose n-th change of a file fails; with `fail_at` 0 none does."""
    counter = library.with_name("counter")
    counter.write_bytes(bytes(8))
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library),
        "FAILING_FOLDER": str(laggard.runs),
        "FAILING_COUNTER": str(counter),
        "FAILING_AT": str(fail_at),
        "FAILING_ERRNO": str(number),
    }
    arguments = ("run", str(scenario), "--fidelity", "record", "--runs", str(laggard.runs))
    done = subprocess.run(
        laggard.command(*arguments),
        env=environment,
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    changes = int.from_bytes(counter.read_bytes(), "little")
    return FailingRun(done.returncode, done.stdout, done.stderr, changes)
