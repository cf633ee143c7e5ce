"""Signals at every stage of a run: it ends in order, and a second one ends it at once."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from laggard.core.process.termination_signals import SECOND_AFTER_S
from laggard.run_folder.store import list_runs
from tests.command_line import Laggard, needs_tun
from tests.faults import Fault, holds
from tests.run.test_faults import (
    PATIENCE_S,
    cgroups_of,
    count_steps,
    process_one,
    start_run,
    tree,
    wait_gone,
)

pytestmark = [needs_tun, pytest.mark.long]

STAGES = {
    "set-up": ("run.json", signal.SIGHUP),
    "verification": ("logs/imports.log", signal.SIGTERM),
    "training": ("workers/progress.jsonl", signal.SIGINT),
    "analysis": ("spans.parquet", signal.SIGTERM),
}
"""File of the run folder that shows that a stage has begun, and the signal that comes then."""


@holds(Fault.SIGNAL)
@pytest.mark.parametrize("stage", STAGES)
def test_a_signal_ends_a_run_in_order(
    stage: str, laggard: Laggard, make_scenario: Callable[..., Path]
) -> None:
    file, number = STAGES[stage]
    steps = "workload.stop.steps=" + ("5" if stage == "analysis" else "100000")
    process = start_run(laggard, make_scenario(), "--set", steps)
    wait_for_file(laggard.runs, file, process)
    processes = tree(process.pid)
    process.send_signal(number)
    output, errors = process.communicate(timeout=PATIENCE_S)
    assert "Traceback" not in errors
    assert wait_gone(processes) == []
    assert cgroups_of(process.pid) == []
    record, folder = list_runs(laggard.runs)[-1]
    # An analysis may have been over before the signal came.
    allowed = {(0, "done"), (3, "unfaithful")} if stage == "analysis" else set()
    assert (process.returncode, record.status) in {(130, "interrupted")} | allowed, errors
    assert json.loads(output)["status"] == record.status
    assert (folder / "report.html").exists() or stage == "analysis"


@holds(Fault.SECOND_SIGNAL)
def test_a_second_signal_ends_a_run_at_once_and_keeps_its_data(
    laggard: Laggard, make_scenario: Callable[..., Path]
) -> None:
    process = start_run(laggard, make_scenario(), "--set", "workload.stop.steps=100000")
    wait_for_file(laggard.runs, "workers/progress.jsonl", process)
    processes = tree(process.pid)
    # The first signal waits for an answer that cannot come.
    process_one(processes).suspend()
    process.send_signal(signal.SIGINT)
    time.sleep(2 * SECOND_AFTER_S)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=PATIENCE_S)
    assert "Traceback" not in errors
    assert process.returncode == 130
    assert "second signal" in str(json.loads(output)["error"])
    assert wait_gone(processes) == []
    finished = count_steps(laggard.runs)
    _, folder = list_runs(laggard.runs)[-1]
    subprocess.run(laggard.command("report", str(folder)), check=True)
    assert len(pd.read_parquet(folder / "steps.parquet").query("rank == 0")) >= finished


def wait_for_file(runs: Path, name: str, process: subprocess.Popen[str]) -> None:
    """Wait until a file of the run's folder exists."""
    deadline = time.monotonic() + PATIENCE_S
    while not any(runs.glob(f"*/2*/{name}")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
