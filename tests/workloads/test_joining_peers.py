"""Workers that are killed and workers that join, in real trainings without a server."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from laggard.workloads.coordination.progress_board import ProgressBoard
from laggard.workloads.output.worker_output import read_lines
from laggard.workloads.tracing.heartbeat import read_heartbeats
from tests.workloads.test_churn import ENDLESS, end, join, rows_of, train_on

if TYPE_CHECKING:
    from tests.workloads.conftest import Train, Training

STRATEGIES = [
    "gossip",
    "fast_links",
    "hop",
    "partial_reduce",
    "ad_psgd",
    "overlap_local_sgd",
    "adaptive",
]
BOUND = ["gossip", "fast_links", "hop"]
WORLD = 3


def first_loss(training: Training, rank: int) -> float:
    return float(rows_of(training, rank)["loss"][0])


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_worker_that_comes_back_begins_with_what_the_others_have_learnt(
    train: Train, name: str
) -> None:
    training = train({**ENDLESS, "strategy": name}, WORLD, wait=False)
    training.begin()
    train_on(training, 2, training.pids[2], 60)
    os.kill(training.pids[2], signal.SIGKILL)
    training.wait_for(lambda: "rank 2 is gone" in training.log("0").read_text())
    last = read_heartbeats(training.output_dir.heartbeat, WORLD)[2].step
    for rank in (0, 1):
        train_on(training, rank, training.pids[rank], 20)
    assert ProgressBoard(training.output_dir.progress_board, WORLD).present == (0, 1)
    asked_ns = join(training, training.plans[2].next_life())
    progress_board = ProgressBoard(training.output_dir.progress_board, WORLD)
    assert progress_board.present == (0, 1, 2)
    parts = progress_board.requested_snapshots
    assert end(training) == [0, 0, -signal.SIGKILL, 0, 0, 0], training.logs()
    assert training.done()["stopped_by"] == "walltime"
    back = rows_of(training, 2, life=1)
    assert np.median(back["loss"][:5]) < 0.5 * first_loss(training, 0), (
        "it begins with what the others know"
    )
    for rank in (0, 1):
        steps = rows_of(training, rank)
        known = steps["step"][steps["end_ns"] < asked_ns].max()
        if name in BOUND or rank == 0:
            assert back["step"][0] >= known, "of who told it, or of all"
        after = steps[steps["start_ns"] > back["start_ns"][0]]
        if name in BOUND:
            assert len(after) > 10
            apart = abs(int(after["step"][-1]) - int(back["step"][-1]))
            assert apart <= 41, "and go on with it, within what binds them all"
    assert back["step"][0] > last, "what it learnt in its first life it does not learn again"
    assert progress_board.given(2) == parts + 1, "the mean that is evaluated in the end includes it"
    assert float(read_lines(training.output_dir.evaluations)[-1]["accuracy"] or 0) > 0.85


@pytest.mark.parametrize("name", STRATEGIES)
def test_nobody_waits_for_workers_that_are_absent_at_the_start_and_two_can_join_at_once(
    train: Train, name: str
) -> None:
    """Not even for the first one; and both of those who join know each other."""
    churn = [{"at": "1s", "joins": "edge.trainer.1.1"}, {"at": "1s", "joins": "edge.trainer.1.3"}]
    training = train({**ENDLESS, "strategy": name, "churn": churn}, 4, wait=False)
    training.begin()
    train_on(training, 1, training.pids[0], 60)
    assert ProgressBoard(training.output_dir.progress_board, 4).present == (1, 3)
    late = [training.plans[0], training.plans[2]]
    pids = [training.start_worker(plan) for plan in late]
    training.pids += pids
    for plan, pid in zip(late, pids, strict=True):
        train_on(training, plan.rank, pid)
    assert ProgressBoard(training.output_dir.progress_board, 4).present == (0, 1, 2, 3)
    assert end(training) == [0] * 6, training.logs()
    for plan in late:
        rows = rows_of(training, plan.rank)
        assert rows["step"][0] >= 60
        assert np.median(rows["loss"][:5]) < 0.5 * first_loss(training, 1)
        assert (np.diff(rows["step"]) > 0).all()


def test_late_news_of_an_older_session_takes_nobody_away(tmp_path: Path) -> None:
    progress_board = ProgressBoard(tmp_path / "progress_board", WORLD)
    progress_board.leave(2)
    progress_board.request_snapshot()
    progress_board.join(2, 1)
    assert progress_board.given(2) == 1, (
        "a snapshot that was asked for before is not expected of it"
    )
    progress_board.leave(2)
    assert progress_board.present == (0, 1, 2)
    progress_board.leave(2, 1)
    assert progress_board.present == (0, 1)
