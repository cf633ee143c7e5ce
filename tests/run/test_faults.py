"""Processes of a run are killed, stopped, made to fail: what must be true afterwards."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import psutil
import pytest

from laggard.run_folder.store import list_runs
from tests.command_line import Laggard, needs_tun
from tests.faults import Fault, count_finished_steps, holds
from tests.processes import find_below, is_alive

pytestmark = needs_tun

CGROUPS = Path("/sys/fs/cgroup")
PATIENCE_S = 300.0
"""How long a test waits for what ends within seconds where nothing else uses the machine."""


WORKER_FAULTS = {
    "killed": ("rank-1", signal.SIGKILL),
    "terminated": ("rank-2", signal.SIGTERM),
    "segmentation_fault": ("rank-0", signal.SIGSEGV),
    "stopped": ("rank-1", signal.SIGSTOP),
}
"""What is done to a worker in the middle of its training."""


@pytest.fixture
def training(
    laggard: Laggard, make_scenario: Callable[..., Path]
) -> Iterator[subprocess.Popen[str]]:
    """A long run that has begun to train."""
    with_many_steps = ("--set", "workload.stop.steps=100000")
    process = start_run(laggard, make_scenario(), *with_many_steps)
    try:
        wait_for_training(laggard.runs, process)
        yield process
    finally:
        process.kill()
        process.communicate()


def start_run(laggard: Laggard, scenario: Path, *arguments: str) -> subprocess.Popen[str]:
    return laggard.start("run", str(scenario), "--json", "--fidelity", "record", *arguments)


def wait_for_training(runs: Path, process: subprocess.Popen[str], timeout_s: float = 400) -> None:
    """Wait for a first step."""
    deadline = time.monotonic() + timeout_s
    while not [p for p in runs.glob("*/*/workers/progress.jsonl") if p.stat().st_size]:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no step was made"
        time.sleep(0.05)


def wait_for_more_steps(runs: Path) -> None:
    """Wait until the training has gone on, by several reports of its progress."""
    until = count_steps(runs) + 5
    deadline = time.monotonic() + PATIENCE_S
    while count_steps(runs) < until:
        assert time.monotonic() < deadline, "no further step was made"
        time.sleep(0.05)


def count_steps(runs: Path) -> int:
    return count_finished_steps(next(runs.glob("*/latest/workers/progress.jsonl")))


def tree(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def named(pid: int, name: str) -> psutil.Process:
    return find_below(psutil.Process(pid), lambda each: each.name() == name)[0]


def wait_gone(
    processes: list[psutil.Process], timeout_s: float = PATIENCE_S
) -> list[psutil.Process]:
    """The processes that have not ended; those that nobody has waited for yet have."""
    deadline = time.monotonic() + timeout_s
    while (alive := [p for p in processes if is_alive(p)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return alive


def cgroups_of(pid: int) -> list[Path]:
    return [
        p for pattern in (f"laggard-{pid}-*", f"*/laggard-{pid}-*") for p in CGROUPS.glob(pattern)
    ]


def wait_for_cgroups_gone(pid: int) -> list[Path]:
    """The run's cgroups that are left, once the janitor had time to remove them."""
    deadline = time.monotonic() + PATIENCE_S
    while (left := cgroups_of(pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


@pytest.mark.long
@holds(Fault.WORKER_ENDED, Fault.WORKER_STOPPED)
@pytest.mark.parametrize(
    "fault",
    [pytest.param(f, marks=() if f == "killed" else pytest.mark.long) for f in WORKER_FAULTS],
)
def test_faulty_worker_is_named_and_the_run_fails(
    training: subprocess.Popen[str], fault: str
) -> None:
    name, number = WORKER_FAULTS[fault]
    processes = tree(training.pid)
    named(training.pid, name).send_signal(number)
    out, errors = training.communicate(timeout=PATIENCE_S)
    answer = json.loads(out)
    assert training.returncode == 1, errors
    assert answer["status"] == "failed"
    assert name.replace("-", " ") in answer["error"]
    assert (Path(answer["folder"]) / "report.html").exists()
    assert wait_gone(processes) == []
    assert cgroups_of(training.pid) == []


def _command(processes: list[psutil.Process]) -> psutil.Process:
    """The process that the user has started."""
    return processes[0]


def process_one(processes: list[psutil.Process]) -> psutil.Process:
    """The first process of the sandbox's PID namespace."""
    (first,) = (p for p in processes if _pids_within(p)[1:] == ["1"])
    return first


def _link_emulator(processes: list[psutil.Process]) -> psutil.Process:
    return next(p for p in processes if p.name() == "laggard-links")


def _pids_within(process: psutil.Process) -> list[str]:
    """The process's number in each PID namespace below this one's, this one's first."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return next(line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:"))


@pytest.mark.long
@holds(Fault.COMMAND_KILLED, Fault.SANDBOX_KILLED)
@pytest.mark.parametrize("find_victim", [_command, process_one, _link_emulator])
def test_any_process_killed_leaves_all_finished_steps_and_nothing_else(
    training: subprocess.Popen[str],
    laggard: Laggard,
    find_victim: Callable[[list[psutil.Process]], psutil.Process],
) -> None:
    """Mounts and network interfaces are compared at the end of every test session."""
    processes = tree(training.pid)
    finished = count_steps(laggard.runs)
    find_victim(processes).kill()
    training.communicate(timeout=PATIENCE_S)
    assert wait_gone(processes) == []
    assert wait_for_cgroups_gone(training.pid) == []
    record, folder = list_runs(laggard.runs)[-1]
    assert record.status in {"interrupted", "failed"}
    if (folder / "workers").exists():
        finished = count_steps(laggard.runs)
    subprocess.run(laggard.command("report", str(folder)), check=True)
    assert (folder / "report.html").exists()
    assert not (folder / "workers").exists()
    assert len(pd.read_parquet(folder / "steps.parquet").query("rank == 0")) >= finished
    assert '"status": "running"' not in (folder / "run.json").read_text()


@holds(Fault.HELPER_KILLED, Fault.SIGNAL)
@pytest.mark.long
def test_a_run_goes_on_without_its_helpers_until_its_user_interrupts_it(
    training: subprocess.Popen[str], laggard: Laggard
) -> None:
    """The watcher only reports, and the janitor acts after the run: their deaths end no run."""
    for name in ("watcher", "laggard-janitor"):
        victim = named(training.pid, name)
        victim.kill()
        assert wait_gone([victim]) == []
        wait_for_more_steps(laggard.runs)
    processes = tree(training.pid)
    training.send_signal(signal.SIGINT)
    output, errors = training.communicate(timeout=PATIENCE_S)
    assert "Traceback" not in errors
    assert wait_gone(processes) == []
    assert cgroups_of(training.pid) == []
    record, folder = list_runs(laggard.runs)[-1]
    assert (training.returncode, record.status) == (130, "interrupted"), errors
    assert json.loads(output)["status"] == "interrupted"
    assert (folder / "report.html").exists()
