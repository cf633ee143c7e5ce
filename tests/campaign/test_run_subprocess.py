"""A run in a process of its own: what it tells, and that it ends with who waits for it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from laggard.campaign.run_subprocess import TIMED_OUT, run_in_subprocess
from laggard.run_folder.store import load_record
from tests.command_line import Laggard, needs_tun

ENDLESS = "workload.stop={steps: 10000000}"
BEGUN_S = 120.0


@pytest.mark.long
@needs_tun
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.long),
        pytest.param(signal.SIGHUP, marks=pytest.mark.long),
    ],
)
def test_what_ends_a_campaign_ends_its_run(
    laggard: Laggard, make_scenario: Callable[..., Path], tmp_path: Path, number: signal.Signals
) -> None:
    """Sent to it alone, as by a batch system, and not to its whole group as by a terminal."""
    make_scenario()
    path = tmp_path / "campaign.yaml"
    path.write_text("scenario: small\nvary: {workload.stop: [{steps: 10000000}]}\n")
    campaign = laggard.start("campaign", str(path), "--fidelity", "record")
    record = _record_of_a_run(campaign, laggard.runs)
    below = psutil.Process(campaign.pid).children(recursive=True)
    assert below
    campaign.send_signal(number)
    out, errors = campaign.communicate(timeout=300)
    assert (campaign.returncode, out.count("\n")) == (130, 1)
    assert errors.endswith("interrupted\n")
    assert "Traceback" not in errors
    assert psutil.wait_procs(below, timeout=60)[1] == []
    assert load_record(record.parent).status == "interrupted"


def _record_of_a_run(campaign: subprocess.Popen[str], runs: Path) -> Path:
    deadline_s = time.monotonic() + BEGUN_S
    while not (found := list(runs.glob("small/2*/run.json"))):
        assert campaign.poll() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    return found[0]


@pytest.mark.long
@needs_tun
def test_who_takes_too_long_is_ended(make_scenario: Callable[..., Path], tmp_path: Path) -> None:
    before = set(psutil.Process().children(recursive=True))
    ended = run_in_subprocess(
        make_scenario(), [ENDLESS], tmp_path / "runs", timeout_s=8.0, fidelity="record"
    )
    assert ended.status in {130, -signal.SIGTERM, -signal.SIGKILL}
    assert (ended.result, ended.errors) == (None, TIMED_OUT)
    left = set(psutil.Process().children(recursive=True)) - before
    assert psutil.wait_procs(left, timeout=60)[1] == []
    deadline_s = time.monotonic() + BEGUN_S
    while _processes_with(tmp_path / "runs"):
        assert time.monotonic() < deadline_s, "the kernel ends a sandbox whose command was killed"
        time.sleep(0.05)


def _processes_with(argument: Path) -> list[int]:
    """Processes, of whatever parent, that have this argument."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if process.pid != os.getpid() and str(argument) in (process.info["cmdline"] or ())
    ]


def test_what_is_refused_is_told(make_scenario: Callable[..., Path], tmp_path: Path) -> None:
    ended = run_in_subprocess(
        make_scenario(), ["workload.strategy=sorcery"], tmp_path / "runs", capture_errors=True
    )
    assert ended.status == 2
    assert ended.result is not None
    assert "sorcery" in str(ended.result["problems"])


def test_who_tells_nothing_has_no_answer(tmp_path: Path) -> None:
    """A folder that is an option is none."""
    ended = run_in_subprocess(Path("--help"), [], tmp_path / "runs", capture_errors=True)
    assert (ended.status, ended.result) == (0, None)
