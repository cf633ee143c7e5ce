"""Runs that are forked from a process with everything imported: each like the first, and ended with
who waits for it."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from laggard.core.run_schema import RunRecord
from laggard.run_folder.store import list_runs, load_record
from tests.command_line import SMALL, needs_tun
from tests.users import Runner

QUICK = """
    import json, os
    from pathlib import Path
    from laggard.campaign.cell_runners.warm_process import start_warm_process
    before = dict(os.environ)
    os.mkdir("started-by-one-that-was-killed")
    with start_warm_process(Path("."), ("laggard.cli.main",)) as warm:
        assert dict(os.environ) == before
        assert not os.path.exists("started-by-one-that-was-killed")
        ended = [warm.run(["check", name, "--json"]) for name in ("small", "missing", "small")]
        print(json.dumps([[each.status, each.result, each.errors] for each in ended]))
"""

RUNS = """
    import json, os, sys
    from pathlib import Path
    from laggard.campaign.cell_runners.warm_process import start_warm_process

    with start_warm_process(Path(".")) as warm:
        words = ["run", "small", "--json", "--runs", "runs", "--no-report", "--fidelity", "record", "--set"]
        for steps in map(int, sys.argv[1:]):
            print("started", flush=True)
            ended = warm.run([*words, f"workload.stop={{steps: {steps}}}"])
            print(json.dumps([ended.status, ended.errors]), flush=True)
"""


def _make_scenario(runner: Runner) -> None:
    folder = runner.folder / "small"
    folder.mkdir()
    for name, text in SMALL.items():
        (folder / name).write_text(text)


def test_every_command_has_its_own_result(own_runner: Runner) -> None:
    _make_scenario(own_runner)
    result = own_runner.run(QUICK, timeout_s=120)
    assert result.returncode == 0, result.stderr
    assert not list(own_runner.folder.glob("started-*"))
    first, missing, last = json.loads(result.stdout)
    assert first == last
    assert (first[0], missing[0]) == (0, 2)
    assert isinstance(first[1], dict)
    assert "missing" in json.dumps(missing)


@needs_tun
@pytest.mark.long
@pytest.mark.parametrize(("number", "whole"), [(signal.SIGTERM, 2), (signal.SIGKILL, 0)])
def test_runs_are_alike_and_end_with_their_campaign(
    own_runner: Runner, number: signal.Signals, whole: int
) -> None:
    _make_scenario(own_runner)
    campaign = own_runner.start(RUNS, *["20"] * whole, "10000000")
    assert campaign.stdout is not None
    lines = _read_lines(campaign, 2 * whole + 1)
    ended = [json.loads(line) for line in lines if line != "started\n"]
    assert [status in {0, 3} for status, _ in ended] == [True] * whole, ended
    _wait_for_training(own_runner.folder / "runs", whole + 1)
    below = psutil.Process(campaign.pid).children(recursive=True)
    campaign.send_signal(number)
    campaign.communicate(timeout=120)
    assert psutil.wait_procs(below, timeout=60)[1] == []
    *alike, last = [record for record, _ in list_runs(own_runner.folder / "runs")]
    assert last.status == "interrupted"
    assert len(alike) == whole
    if whole:
        _assert_alike(*alike)


def _assert_alike(first: RunRecord, second: RunRecord) -> None:
    assert first.outcome is not None
    assert second.outcome is not None
    assert first.outcome.steps == second.outcome.steps == 20
    assert first.outcome.accuracy == second.outcome.accuracy
    assert first.command[1:] == second.command[1:]


def _read_lines(campaign: subprocess.Popen[str], count: int) -> list[str]:
    assert campaign.stdout is not None
    return [campaign.stdout.readline() for _ in range(count)]


def _wait_for_training(runs: Path, count: int) -> None:
    deadline_s = time.monotonic() + 120.0
    while time.monotonic() < deadline_s:
        found = sorted(runs.glob("small/2*/run.json"))
        if len(found) == count and load_record(found[-1].parent).first_step_s is not None:
            return
        time.sleep(0.05)
    raise AssertionError("the last run has not begun to train")
