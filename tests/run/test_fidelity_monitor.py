"""A run or an emulation whose cores are taken from it is marked, and says when."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import psutil
import pytest

from laggard.core.run_schema import RunRecord
from laggard.network_emulation.compute.cpu_plan import usable_cores
from tests.command_line import MORE_ATTEMPTS, UNFAITHFUL, Laggard, needs_tun
from tests.emulate.test_emulation import emulated
from tests.run.test_faults import trains
from tests.users import Runner

pytestmark = [
    needs_tun,
    pytest.mark.alone,
    pytest.mark.skipif(
        os.geteuid() != 0, reason="only root may start a process that is preferred to all others"
    ),
]

# Above the workers, below what emulates: a busy loop that any scheduler prefers to them, six tenths
# of the time.
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
COMPUTE = """
print("computes", flush=True)
while True:
    pass
"""
SETTINGS = ("--set", "workload.stop.steps=100000", "--set", "workload.stop.time=8s")


@contextmanager
def rivals() -> Iterator[None]:
    """Take every core."""
    started = [subprocess.Popen([sys.executable, "-c", BUSY, str(core)]) for core in usable_cores()]
    try:
        yield
    finally:
        for rival in started:
            psutil.Process(rival.pid).kill()
            rival.wait()


def test_a_run_whose_cores_are_stolen_is_unfaithful(
    laggard: Laggard, make_scenario: Callable[..., Path]
) -> None:
    scenario = make_scenario()
    for _ in range(1 + MORE_ATTEMPTS):
        process = laggard.start("run", str(scenario), "--json", *SETTINGS)
        trained = trains(laggard.runs, process)
        with rivals() if trained else nullcontext():
            until_s = time.monotonic() + 120
            while (
                not list(laggard.runs.glob("*/*/fidelity_violations.json"))
                and time.monotonic() < until_s
            ):
                time.sleep(0.05)
        output, errors = process.communicate(timeout=240)
        if trained:
            break
    assert process.returncode == UNFAITHFUL, errors
    answer = json.loads(output)
    folder = Path(str(answer["folder"]))
    record = RunRecord.model_validate_json((folder / "run.json").read_bytes())
    assert record.status == "unfaithful"
    assert record.outcome is not None, "what it measured is there all the same"
    violations = json.loads((folder / "fidelity_violations.json").read_text())
    missed = [violation for violation in violations if violation["kind"] == "cpu starved"]
    assert {violation["where"] for violation in missed} <= {
        "cloud.trainer.1.1",
        "edge.trainer.1.1",
        "edge.trainer.1.2",
    }
    assert missed
    assert all(
        0 <= violation["first_s"] < violation["last_s"] <= record.outcome.makespan_s + 2
        for violation in violations
    )
    assert missed[0]["text"] in str(record.error)
    assert str(record.error).splitlines()[0] in (folder / "report.html").read_text()


def test_an_emulation_whose_cores_are_stolen_says_so_at_once(own_runner: Runner) -> None:
    """What a user's program is kept from is told while it is up, is on disk should it be killed
    then, and is its end."""
    with emulated(own_runner) as emulation:
        program = emulation.start("ssh", "edge.trainer.1.1", own_runner.command[0], "-c", COMPUTE)
        assert program.stdout is not None
        assert program.stdout.readline() == "computes\n"
        assert emulation.process.stdout is not None
        with rivals():
            assert select.select([emulation.process.stdout], [], [], 30)[0], "nothing was said"
            told = json.loads(emulation.process.stdout.readline())
        folder = Path(str(emulation.up["folder"]))
        running = RunRecord.model_validate_json((folder / "run.json").read_bytes())
        emulation.process.terminate()
        output, errors = emulation.process.communicate(timeout=30)
    assert told["status"] == "violated"
    assert ("cpu starved", "edge.trainer.1.1") in {
        (violation["kind"], violation["where"]) for violation in told["violations"]
    }, told
    assert running.status == "running"
    assert told["violations"][0]["text"] in str(running.error)
    assert emulation.process.returncode == UNFAITHFUL, errors
    ended = json.loads(output.splitlines()[-1])
    assert ended["status"] == "unfaithful"
    assert "slipped while it was up" in ended["error"]
    violations = json.loads((folder / "fidelity_violations.json").read_text())
    (missed,) = (
        violation
        for violation in violations
        if (violation["kind"], violation["where"]) == ("cpu starved", "edge.trainer.1.1")
    )
    assert 0 <= missed["first_s"] < missed["last_s"] < 60
