"""Processes of a run are killed, stopped, made to fail: what must be true afterwards."""

from __future__ import annotations

import enum
import json
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from laggard.core.run_schema import RunRecord
from laggard.run_folder.store import list_runs
from tests.command_line import MORE_ATTEMPTS, UNFAITHFUL, Laggard, needs_tun

pytestmark = needs_tun

CGROUPS = Path("/sys/fs/cgroup")
DISPENSABLE = {"laggard-janitor", "watcher"}
"""Processes whose death does not end a run: what they are for comes after it, or is said beside
it."""


class Fault(enum.Enum):
    """What is done to a run in the middle of its training."""

    WORKER_KILLED = ("rank-1", signal.SIGKILL)
    WORKER_TERMINATED = ("rank-2", signal.SIGTERM)
    WORKER_STOPPED = ("rank-1", signal.SIGSTOP)


@pytest.fixture
def training(
    laggard: Laggard, make_scenario: Callable[..., Path]
) -> Iterator[subprocess.Popen[str]]:
    """A long run that has begun to train."""
    scenario = make_scenario()
    for _ in range(1 + MORE_ATTEMPTS):
        process = laggard.start(
            "run", str(scenario), "--json", "--set", "workload.stop.steps=100000"
        )
        try:
            if trains(laggard.runs, process):
                yield process
                return
        finally:
            process.kill()
            process.communicate()
        assert process.returncode == UNFAITHFUL
    pytest.fail("this machine is too busy to emulate three hosts")


def trains(runs: Path, process: subprocess.Popen[str], timeout_s: float = 120) -> bool:
    """Wait for a first step; false where the run ended before it."""
    deadline = time.monotonic() + timeout_s
    while not [p for p in runs.glob("*/*/workers/progress.jsonl") if p.stat().st_size]:
        if process.poll() is not None:
            return False
        assert time.monotonic() < deadline, "no step was made"
        time.sleep(0.05)
    return True


def tree(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def named(pid: int, name: str) -> psutil.Process:
    return next(p for p in tree(pid) if p.name() == name)


def wait_gone(processes: list[psutil.Process], timeout_s: float = 10) -> list[psutil.Process]:
    _, alive = psutil.wait_procs(processes, timeout=timeout_s)
    return [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def cgroups_of(pid: int) -> list[Path]:
    return [
        p for pattern in (f"laggard-{pid}-*", f"*/laggard-{pid}-*") for p in CGROUPS.glob(pattern)
    ]


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name.lower())
def test_faulty_worker_is_named_and_the_run_fails_in_seconds(
    training: subprocess.Popen[str], laggard: Laggard, fault: Fault
) -> None:
    name, number = fault.value
    processes = tree(training.pid)
    named(training.pid, name).send_signal(number)
    began = time.monotonic()
    out, errors = training.communicate(timeout=90)
    assert time.monotonic() - began < 60
    answer = json.loads(out)
    assert training.returncode == 1, errors
    assert answer["status"] == "failed"
    assert name.replace("-", " ") in answer["error"]
    assert (Path(answer["folder"]) / "report.html").exists()
    assert wait_gone(processes) == []
    assert cgroups_of(training.pid) == []


def test_with_a_server_the_others_go_on_without_a_killed_worker(
    laggard: Laggard, make_scenario: Callable[..., Path]
) -> None:
    settings = ("--set", "workload.strategy=bounded_staleness", "--set", "workload.stop={time: 8s}")
    scenario = make_scenario()
    for _ in range(1 + MORE_ATTEMPTS):
        process = laggard.start("run", str(scenario), "--json", *settings)
        if trains(laggard.runs, process):
            named(process.pid, "rank-2").kill()
        out, errors = process.communicate(timeout=120)
        if process.returncode != UNFAITHFUL:
            break
    answer = json.loads(out)
    assert (process.returncode, answer["status"]) == (0, "done"), errors
    record = RunRecord.model_validate_json((Path(answer["folder"]) / "run.json").read_bytes())
    assert record.lost_ranks == (2,)
    assert record.outcome is not None
    assert record.outcome.stopped_by == "time"
    assert record.warnings[-1].startswith("rank 2 on edge.trainer.1.2 was killed")
    page = (Path(answer["folder"]) / "report.html").read_text()
    assert "edge.trainer.1.2 (rank 2) was lost, and the others went on without it." in page


@pytest.mark.parametrize("seed", range(4))
def test_any_process_killed_leaves_nothing(
    training: subprocess.Popen[str], laggard: Laggard, seed: int
) -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    devices = sorted(p.name for p in Path("/sys/class/net").iterdir())
    processes = tree(training.pid)
    victim = random.Random(seed).choice([p for p in processes if p.name() not in DISPENSABLE])
    victim.kill()
    training.communicate(timeout=90)
    assert wait_gone(processes) == []
    deadline = time.monotonic() + 10
    while cgroups_of(training.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert cgroups_of(training.pid) == []
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert sorted(p.name for p in Path("/sys/class/net").iterdir()) == devices
    record, _ = list_runs(laggard.runs)[-1]
    assert record.status in {"interrupted", "failed"}


@pytest.mark.parametrize("name", sorted(DISPENSABLE))
def test_a_run_goes_on_and_cleans_up_without_its_janitor_or_watcher(
    training: subprocess.Popen[str], name: str
) -> None:
    victim = named(training.pid, name)
    victim.kill()
    assert wait_gone([victim]) == []
    with pytest.raises(subprocess.TimeoutExpired):
        training.wait(timeout=2.0)
    assert cgroups_of(training.pid)
    training.send_signal(signal.SIGINT)
    training.communicate(timeout=60)
    assert cgroups_of(training.pid) == []


def test_interrupted_by_the_user(training: subprocess.Popen[str], laggard: Laggard) -> None:
    processes = tree(training.pid)
    training.send_signal(signal.SIGINT)
    training.communicate(timeout=60)
    assert wait_gone(processes) == []
    assert cgroups_of(training.pid) == []
    record, _ = list_runs(laggard.runs)[-1]
    assert record.status == "interrupted"
