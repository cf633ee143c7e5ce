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
from tests.one_short import one_short
from tests.workloads.test_churn import ENDLESS, end, join, rows_of, train_on

if TYPE_CHECKING:
    from tests.workloads.conftest import Train, Training

STRATEGIES = [
    "gossip",
    pytest.param("fast_links", marks=pytest.mark.long),
    pytest.param("hop", marks=pytest.mark.long),
    "partial_reduce",
    pytest.param("ad_psgd", marks=pytest.mark.long),
    pytest.param("overlap_local_sgd", marks=pytest.mark.long),
    "adaptive",
]
BOUND = ["gossip", "fast_links", "hop"]
IN_BACKGROUND = ["ad_psgd", "overlap_local_sgd", "adaptive"]
WORLD = 4
LATE = (0, 2)


def present(training: Training) -> tuple[int, ...]:
    return ProgressBoard(training.output_dir.progress_board, WORLD).present


def have_met(training: Training, rank: int, other: int) -> bool:
    """Whether one of two ranks has been told by the other that it joined."""
    return any(
        f"rank {newcomer} has joined in step" in training.log(str(host)).read_text()
        for host, newcomer in ((rank, other), (other, rank))
    )


@pytest.mark.parametrize("name", one_short(STRATEGIES))
def test_who_joins_or_comes_back_begins_with_what_the_others_have_learnt(
    train: Train, name: str
) -> None:
    """Nobody waits for workers that are absent at the start, not even for the first one; both of
    those who join at once know each other; one of them is killed, and comes back."""
    churn = [{"at": "1s", "joins": f"edge.trainer.1.{rank + 1}"} for rank in LATE]
    training = train({**ENDLESS, "strategy": name, "churn": churn}, WORLD, wait=False)
    pids = dict(zip((1, 3), training.pids, strict=True))
    training.begin()
    for rank in (1, 3):
        train_on(training, rank, pids[rank], 60)
    assert present(training) == (1, 3)
    pids |= {rank: training.start_worker(training.plans[rank]) for rank in LATE}
    training.pids = list(pids.values())
    for rank in LATE:
        train_on(training, rank, pids[rank])
    assert present(training) == (0, 1, 2, 3)
    others = (0, 1, 3)
    # Steps in between do not say so where models are exchanged in the background; and who is
    # stopped before the others know it would not be missed.
    training.wait_for(lambda: all(have_met(training, rank, 2) for rank in others))
    if name in IN_BACKGROUND:
        os.kill(pids[2], signal.SIGSTOP)
        for rank in others:
            train_on(training, rank, pids[rank])
    os.kill(pids[2], signal.SIGKILL)
    training.wait_for(lambda: "rank 2 is gone" in training.log("0").read_text())
    last = read_heartbeats(training.output_dir.heartbeat, WORLD)[2].step
    for rank in others:
        train_on(training, rank, pids[rank])
    assert present(training) == others
    asked_ns = join(training, training.plans[2].next_life())
    for rank in others:
        # The others have begun steps after it came back; they may have waited for it until now.
        train_on(training, rank, pids[rank])
    progress_board = ProgressBoard(training.output_dir.progress_board, WORLD)
    assert progress_board.present == (0, 1, 2, 3)
    parts = progress_board.requested_snapshots
    statuses = [-signal.SIGKILL if rank == 2 else 0 for rank in pids]
    assert end(training) == [*statuses, 0, 0, 0], training.logs()
    assert training.done()["stopped_by"] == "walltime"
    first_loss = float(rows_of(training, 1)["loss"][0])
    assert last >= 60, "the first life of rank 2, whose trace the kill may have cut off"
    for rows in (rows_of(training, 0), rows_of(training, 2, life=1)):
        assert rows["step"][0] >= 60
        assert np.median(rows["loss"][:5]) < 0.5 * first_loss
        assert (np.diff(rows["step"]) > 0).all()
    check_who_came_back(training, name, asked_ns, last)
    assert progress_board.given(2) == parts + 1, "the mean that is evaluated in the end includes it"
    assert float(read_lines(training.output_dir.evaluations)[-1]["accuracy"] or 0) > 0.85


def check_who_came_back(training: Training, name: str, asked_ns: int, last: int) -> None:
    """It begins where those who told it are, or all, and goes on with them."""
    back = rows_of(training, 2, life=1)
    assert back["step"][0] > last, "what it learnt in its first life it does not learn again"
    for rank in (0, 1, 3):
        steps = rows_of(training, rank)
        if name in BOUND or rank == 0:
            assert back["step"][0] >= steps["step"][steps["end_ns"] < asked_ns].max()
        if name in BOUND:
            after = steps[steps["start_ns"] > back["start_ns"][0]]
            assert len(after) > 10
            apart = abs(int(after["step"][-1]) - int(back["step"][-1]))
            assert apart <= 41, "within what binds them all"


def test_late_news_of_an_older_session_takes_nobody_away(tmp_path: Path) -> None:
    progress_board = ProgressBoard(tmp_path / "progress_board", 3)
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
