"""`laggard run` of a scenario whose workers leave, join and are killed."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from laggard.core.run_schema import RunRecord
from laggard.workloads.output.worker_output import WorkerOutputDir
from tests.command_line import UNFAITHFUL, Laggard, needs_tun
from tests.run.test_faults import named, start_run

pytestmark = [needs_tun, pytest.mark.long]

CLOUD, LATE, AWAY = "cloud.trainer.1.1", "edge.trainer.1.1", "edge.trainer.1.2"
RANKS = {CLOUD: 0, LATE: 1, AWAY: 2}
CHURN = (
    f"[{{at: 2s, leaves: {AWAY}}}, {{at: 3s, joins: {AWAY}}}, {{at: 1s, joins: {LATE}}}, {{at: 1h,"
    f" leaves: {LATE}}}]"
)
SETTINGS = (
    "strategy={name: bounded_staleness, staleness: 3}",
    "stop={time: 30s}",
    f"churn={CHURN}",
)


def test_the_others_train_on_while_workers_leave_join_and_are_killed(
    laggard: Laggard, make_scenario: Callable[..., Path]
) -> None:
    settings = [part for each in SETTINGS for part in ("--set", f"workload.{each}")]
    process = start_run(laggard, make_scenario(), *settings)
    _wait_for_return(laggard.runs, process)
    named(process.pid, f"rank-{RANKS[LATE]}").kill()
    out, errors = process.communicate(timeout=300)
    assert process.returncode in {0, UNFAITHFUL}, errors
    folder = Path(json.loads(out)["folder"])
    record = RunRecord.model_validate_json((folder / "run.json").read_bytes())
    _check_record(record)
    _check_steps(record, folder)
    _check_report(record, folder)


def _wait_for_return(runs: Path, process: subprocess.Popen[str], timeout_s: float = 400) -> None:
    """Wait until the worker that left is one of the training again."""
    deadline = time.monotonic() + timeout_s
    returned = WorkerOutputDir(Path("workers")).ready(RANKS[AWAY], 1)
    while not list(runs.glob(f"*/*/{returned}")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the worker did not return"
        time.sleep(0.05)


def _check_record(record: RunRecord) -> None:
    assert record.outcome is not None
    assert record.outcome.stopped_by == "time"
    assert record.lost_ranks == (RANKS[LATE],)
    assert [(each.host, each.kind) for each in record.churn] == [
        (LATE, "joined"),
        (AWAY, "left"),
        (AWAY, "joined"),
    ]
    assert [each.requested_s for each in record.churn] == [1, 2, 3]
    assert all(each.requested_s <= each.effective_s for each in record.churn)
    assert any(each.startswith(f"rank 1 on {LATE} was killed") for each in record.warnings)


def _check_steps(record: RunRecord, folder: Path) -> None:
    steps = pd.read_parquet(folder / "steps.parquet")
    assert not steps.duplicated(["step", "rank"]).any()
    began = {rank: rows.start_ns.to_numpy() / 1e9 for rank, rows in steps.groupby("rank")}
    effective = {(each.host, each.kind): each.effective_s for each in record.churn}
    assert began[RANKS[CLOUD]].min() == 0
    assert began[RANKS[LATE]].min() >= record.churn[0].requested_s
    away = began[RANKS[AWAY]]
    gone = (away > effective[AWAY, "left"]) & (away < record.churn[-1].requested_s)
    assert not gone.any()
    assert (away >= record.churn[-1].requested_s).sum() > 5, "and goes on learning"
    counters = json.loads((folder / "counters.json").read_text())
    counted = {row["rank"]: row["steps"] for row in counters["work"]}
    assert all(counted[rank] >= len(rows) for rank, rows in began.items()), "of both its lives"


def _check_report(record: RunRecord, folder: Path) -> None:
    page = (folder / "report.html").read_text().replace("\u00a0", " ")
    left_s, back_s = (each.effective_s for each in record.churn[1:])
    assert f"{AWAY} (rank 2) left after {left_s:.1f} s and joined after {back_s:.1f} s." in page
    assert f"{LATE} (rank 1) was lost, and the others went on without it." in page
