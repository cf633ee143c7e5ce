"""`laggard run` as an ordinary user, who has no real-time priority and no cgroups of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command_line import SMALL, UNFAITHFUL
from tests.run.slower_ranks import find_clearly_slower
from tests.users import Runner

RUN = """
    import sys
    from laggard.cli.main import main
    sys.argv = ["laggard", "run", *sys.argv[1:], "--json"]
    main()
"""


def write(folder: Path) -> Path:
    scenario = folder / "small"
    scenario.mkdir()
    for name, text in SMALL.items():
        (scenario / name).write_text(text)
    return scenario


@pytest.mark.long
def test_runs_to_the_end(nobody_with_tun: Runner) -> None:
    scenario = write(nobody_with_tun.folder)
    runs = nobody_with_tun.folder / "runs"
    # Stop signals hold long phases to their share better than phases of a millisecond or two.
    long = ("--set", "workload.model=resnet8", "--set", "workload.batch_size=384")
    few = ("--set", "workload.stop.steps=30")
    record = ("--fidelity", "record", "--no-report")
    done = nobody_with_tun.run(
        RUN, str(scenario), "--runs", str(runs), *long, *few, *record, timeout_s=480
    )
    assert done.returncode in {0, UNFAITHFUL}, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert answer["status"] in {"done", "unfaithful"}
    assert answer["outcome"]["steps"] == 30
    assert {check["kind"] for check in answer["fidelity"]} == {"rtt", "rate", "cpu"}
    slow = {
        each["rank"]
        for each in answer["stragglers"]
        if (each["family"], each["kind"]) == ("compute", "deterministic")
    }
    assert slow >= find_clearly_slower(Path(answer["folder"])), answer["stragglers"]


def test_says_what_is_missing_before_anything_starts(runner: Runner) -> None:
    """Where the TUN device is root's alone, an ordinary user is told the command that opens it."""
    scenario = write(runner.folder)
    runs = runner.folder / "runs"
    done = runner.run(RUN, str(scenario), "--runs", str(runs), "--links", "netem", timeout_s=60)
    assert done.returncode == 1, done.stdout + done.stderr
    assert json.loads(done.stdout)["kind"] == "PrerequisiteError"
    assert "netem" in json.loads(done.stdout)["error"]
    assert not runs.exists()
