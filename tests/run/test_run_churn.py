"""`laggard run` of a scenario whose workers leave and join."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from laggard.core.run_schema import RunRecord
from tests.command_line import Laggard, needs_tun

pytestmark = needs_tun

AWAY, LATE = "edge.trainer.1.2", "edge.trainer.1.1"
CHURN = (
    f"[{{at: 2s, leaves: {AWAY}}}, {{at: 3s, joins: {AWAY}}}, {{at: 1s, joins: {LATE}}}, {{at: 1h,"
    f" leaves: {LATE}}}]"
)


def test_workers_leave_and_join_while_the_others_train(
    laggard: Laggard, make_scenario: Callable[..., Path]
) -> None:
    settings = (
        "strategy={name: bounded_staleness, staleness: 3}",
        "stop={time: 8s}",
        f"churn={CHURN}",
    )
    answer = laggard.run(
        make_scenario(), *(part for each in settings for part in ("--set", f"workload.{each}"))
    )
    folder = Path(str(answer["folder"]))
    record = RunRecord.model_validate_json((folder / "run.json").read_bytes())
    assert record.outcome is not None
    assert record.outcome.stopped_by == "time"
    assert record.lost_ranks == ()
    happened = {(each.host, each.kind): each for each in record.churn}
    assert list(happened) == [(LATE, "joined"), (AWAY, "left"), (AWAY, "joined")]
    assert [each.requested_s for each in happened.values()] == [1, 2, 3]
    assert all(each.requested_s <= each.effective_s < 8 for each in record.churn)
    assert happened[AWAY, "left"].effective_s == pytest.approx(2, abs=0.5)
    assert any(
        "training was over before edge.trainer.1.1 leaves at 3600 s" in each
        for each in record.warnings
    )
    steps = pd.read_parquet(folder / "steps.parquet")
    assert not steps.duplicated(["step", "rank"]).any()
    ranks = {host: rank for rank, host in enumerate(("cloud.trainer.1.1", LATE, AWAY))}
    began = {rank: rows.start_ns.to_numpy() / 1e9 for rank, rows in steps.groupby("rank")}
    joined_s, left_s, back_s = (each.effective_s for each in record.churn)
    assert began[0].min() == 0
    assert began[ranks[LATE]].min() == pytest.approx(joined_s, abs=0.5)
    absent = (began[ranks[AWAY]] > left_s) & (began[ranks[AWAY]] < back_s - 0.5)
    assert not absent.any()
    assert (began[ranks[AWAY]] > back_s).sum() > 5, "and goes on learning"
    counters = json.loads((folder / "counters.json").read_text())
    counted = {row["rank"]: row["steps"] for row in counters["work"]}
    assert all(counted[rank] >= len(rows) for rank, rows in began.items()), "of both its lives"
    page = (folder / "report.html").read_text().replace("\u00a0", " ")
    assert f"{AWAY} (rank 2) left after {left_s:.1f} s and joined after {back_s:.1f} s." in page
