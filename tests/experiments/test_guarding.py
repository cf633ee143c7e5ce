"""A run whose cores are taken from it while it trains is marked, and says when."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from laggard.network_emulation.cpu_plan import usable_cores
from laggard.run_schema import RunRecord
from tests.experiments.conftest import MORE_ATTEMPTS, UNFAITHFUL, Laggard, needs_tun
from tests.experiments.test_faults import trains

pytestmark = needs_tun

# Above the workers, below what emulates: a busy loop that any scheduler prefers to them, six tenths of the time.
BUSY = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(5))
while True:
    until = time.monotonic() + 0.06
    while time.monotonic() < until:
        pass
    time.sleep(0.04)
"""
SETTINGS = ("--set", "workload.stop.steps=100000", "--set", "workload.stop.time=20s")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may start a process that is preferred to all others")
def test_a_run_whose_cores_are_stolen_is_unfaithful(laggard: Laggard, make_scenario: Callable[..., Path]) -> None:
    scenario = make_scenario()
    for _ in range(1 + MORE_ATTEMPTS):
        process = laggard.start("run", str(scenario), "--json", *SETTINGS)
        rivals = []
        if trains(laggard.runs, process):
            rivals = [subprocess.Popen([sys.executable, "-c", BUSY, str(core)]) for core in usable_cores()]
        output, errors = process.communicate(timeout=240)
        for rival in rivals:
            psutil.Process(rival.pid).kill()
            rival.wait()
        if rivals:
            break
    assert process.returncode == UNFAITHFUL, errors
    answer = json.loads(output)
    folder = Path(str(answer["folder"]))
    record = RunRecord.model_validate_json((folder / "run.json").read_bytes())
    assert record.status == "unfaithful"
    assert record.outcome is not None, "what it measured is there all the same"
    slips = json.loads((folder / "guard.json").read_text())
    missed = [slip for slip in slips if slip["kind"] == "core missed"]
    assert {slip["where"] for slip in missed} <= {"cloud.trainer.1.1", "edge.trainer.1.1", "edge.trainer.1.2"}
    assert missed
    assert all(0 <= slip["first_s"] < slip["last_s"] <= record.outcome.makespan_s + 2 for slip in slips)
    assert missed[0]["text"] in str(record.error)
    assert str(record.error).splitlines()[0] in (folder / "report.html").read_text()
