"""`laggard evaluate` from end to end, on the first cases of the grid."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from laggard.analysis.evaluate.case_evaluation import evaluate_case, evaluate_cases
from laggard.analysis.evaluate.case_grid import build_full_grid
from laggard.analysis.evaluate.evaluation_report import MAX_GOALS, MIN_GOALS
from laggard.cli.main import main

KEYS = {
    "precision",
    "recall",
    "f1",
    "label_macro_f1",
    "top1",
    "link_top1",
    "onset_delay_steps",
    "false_alarms_per_1000_steps",
    "cost_error_p50",
    "cost_error_p90",
    "undetectable",
}


@pytest.mark.long
def test_a_tiny_grid_is_scored_for_machines_and_for_people() -> None:
    answered = CliRunner().invoke(main, ["evaluate", "--cases", "15", "--seed", "3", "--json"])
    assert answered.exit_code == 0, answered.output
    document = json.loads(answered.output)
    assert set(document) >= KEYS
    assert (document["cases"], document["seed"], document["goals"]) == (
        15,
        3,
        MIN_GOALS | MAX_GOALS,
    )
    assert document["f1"] > 0.5
    assert document["by"]["injected"]["none"]["cases"] == 5
    assert sum(part["events"] for part in document["by"]["workers"].values()) == document["events"]
    assert all(each["errors"] > 0 for each in document["worst"])

    told = CliRunner().invoke(main, ["evaluate", "--cases", "3"])
    assert told.exit_code == 0, told.output
    assert "F1 of events" in told.output
    assert "goal: at least 0.95" in told.output


@pytest.mark.long
def test_processes_change_nothing() -> None:
    cases = [case for case in build_full_grid(5)[:60] if case.workers <= 8][:4]
    assert list(evaluate_cases(cases, evaluate_case, processes=2)) == [
        evaluate_case(case) for case in cases
    ]
    assert list(evaluate_cases([], evaluate_case, processes=2)) == []


@pytest.mark.parametrize(
    "arguments", [["--full", "--cases", "3"], ["--cases", "0"], ["--seed", "-1"]]
)
def test_what_makes_no_sense_is_refused(arguments: list[str]) -> None:
    assert CliRunner().invoke(main, ["evaluate", *arguments]).exit_code == 2


@pytest.mark.long
def test_it_ends_at_ctrl_c_without_a_traceback() -> None:
    """The terminal's signal goes to the whole group, while both processes are at work."""
    command = [sys.executable, "-m", "laggard.cli.main", "evaluate", "--cases", "1000"]
    started = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    children = Path(f"/proc/{started.pid}/task/{started.pid}/children")
    while (
        len(busy := [child for child in children.read_text().split() if _cpu_ticks(child) > 100])
        < 1
    ):
        assert started.poll() is None
        time.sleep(0.05)
    assert busy
    os.killpg(started.pid, signal.SIGINT)
    out, err = started.communicate(timeout=300)
    assert started.returncode == 130
    assert out == ""
    assert err == "interrupted\n"


def _cpu_ticks(pid: str) -> int:
    try:
        return sum(
            map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13])
        )
    except OSError:
        return 0
