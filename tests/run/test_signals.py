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

from laggard.layers_services.local.signalled_wait import SECOND_AFTER_S
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
    "set-up": "run.json",
    "verification": "logs/imports.log",
    "training": "workers/progress.jsonl",
    "analysis": "spans.parquet",
}
"""File of the run folder that shows that a stage has begun."""
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@holds(Fault.SIGNAL)
@pytest.mark.parametrize("stage", STAGES)
def test_a_signal_ends_a_run_in_order(
    stage: str, laggard: Laggard, make_scenario: Callable[..., Path]
) -> None:
    steps = "workload.stop.steps=" + ("5" if stage == "analysis" else "100000")
    scenario = make_scenario()
    for count, number in enumerate(NUMBERS, 1):
        process = start_run(laggard, scenario, "--set", steps)
        wait_for_stage(laggard.runs, count, STAGES[stage], process)
        processes = tree(process.pid)
        process.send_signal(number)
        output, errors = process.communicate(timeout=PATIENCE_S)
        assert "Traceback" not in errors
        assert wait_gone(processes) == []
        assert cgroups_of(process.pid) == []
        record, folder = list_runs(laggard.runs)[-1]
        ended = (process.returncode, record.status)
        # An analysis may have been over before the signal came.
        allowed = {(0, "done"), (3, "unfaithful")} if stage == "analysis" else set()
        assert ended in {(130, "interrupted")} | allowed, errors
        assert json.loads(output)["status"] == record.status
        assert (folder / "report.html").exists() or stage == "analysis"


@holds(Fault.SECOND_SIGNAL)
def test_a_second_signal_ends_a_run_at_once_and_keeps_its_data(
    laggard: Laggard, make_scenario: Callable[..., Path]
) -> None:
    process = start_run(laggard, make_scenario(), "--set", "workload.stop.steps=100000")
    wait_for_stage(laggard.runs, 1, STAGES["training"], process)
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


def wait_for_stage(runs: Path, count: int, file: str, process: subprocess.Popen[str]) -> None:
    """Wait until the folder of the n-th run has a file."""
    deadline = time.monotonic() + PATIENCE_S
    while not any(
        path.exists() for path in [f / file for f in sorted(runs.glob("*/2*"))][count - 1 :]
    ):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
