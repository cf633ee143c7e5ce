"""Workers that are killed and workers that join, in real trainings with a server; and what `churn:`
means for hosts."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pytest

from laggard.workloads.coordination.start_barrier import Reason, StartBarrier
from laggard.workloads.plan import WorkerPlan
from laggard.workloads.specification.churn import Turn, absent_at_start, faults, turns
from laggard.workloads.tracing.heartbeat import read_heartbeats
from laggard.workloads.tracing.row_types import STEP_ROW, Rows
from laggard.workloads.tracing.stream import read_rows
from laggard.workloads.workload import Workload
from tests.one_short import one_short
from tests.workloads.conftest import make_hosts

if TYPE_CHECKING:
    from tests.workloads.conftest import Train, Training

ENDLESS = {
    "model": "mlp",
    "dataset": "digits",
    "batch_size": 96,
    "optimizer": {"lr": 0.05},
    "stop": {"steps": 10**6},
    "evaluate_every": 10**9,
}
STALENESS = 2
STRATEGIES = [
    "parameter_server",
    "asynchronous",
    {"name": "bounded_staleness", "staleness": STALENESS},
    "backup_workers",
]
HOSTS = make_hosts(4)


def entries(*written: Mapping[str, str]) -> Workload:
    return Workload.model_validate({"model": "mlp", "dataset": "digits", "churn": list(written)})


def join(training: Training, plan: WorkerPlan, steps: int = 20) -> int:
    """Start a worker, and wait until it has taken so many steps; returns when it was started
    (CLOCK_MONOTONIC)."""
    asked_ns = time.monotonic_ns()
    training.pids.append(training.start_worker(plan))
    train_on(training, plan.rank, training.pids[-1], steps)
    return asked_ns


def train_on(training: Training, rank: int, pid: int, steps: int = 20) -> None:
    """Wait until the process of a rank has taken so many more steps."""
    begun: list[int] = []

    def has_trained() -> bool:
        beat = read_heartbeats(training.output_dir.heartbeat, len(training.plans))[rank]
        if beat.pid == pid:
            begun.append(beat.step)
        return bool(begun) and beat.step >= begun[0] + steps

    training.wait_for(has_trained)


def end(training: Training) -> list[int | None]:
    """End the training; how its processes ended."""
    barrier = StartBarrier(training.output_dir.start_barrier, len(training.plans))
    barrier.request_stop(Reason.WALLTIME)
    return training.forkery.wait([*training.pids, *training.aside])


def rows_of(training: Training, rank: int, life: int = 0) -> Rows:
    return read_rows(training.output_dir.steps(rank, life), STEP_ROW)


@pytest.mark.parametrize("strategy", one_short(STRATEGIES), ids=str)
def test_a_worker_that_joins_or_comes_back_is_brought_up_to_date(
    train: Train, strategy: object
) -> None:
    """Rank 0 is absent at the start, which nobody waits for, though it else says when the first
    step begins; rank 2 is killed, and comes back."""
    churn = [{"at": "1s", "joins": "edge.trainer.1.1"}]
    training = train({**ENDLESS, "strategy": strategy, "churn": churn}, 3, wait=False)
    assert [plan.late for plan in training.plans] == [True, False, False]
    assert [plan.opens for plan in training.plans] == [False, True, False]
    one, two = training.pids
    training.begin()
    # A newcomer begins with the step of the slowest, which is to have taken some.
    for rank, pid in ((1, one), (2, two)):
        train_on(training, rank, pid)
    joined_ns = join(training, training.plans[0], 1 if strategy == "backup_workers" else 20)
    os.kill(two, signal.SIGKILL)
    training.wait_for(lambda: "lost the connection to rank 2" in training.log("server").read_text())
    for rank, pid in ((0, training.pids[2]), (1, one)):
        train_on(training, rank, pid)
    asked_ns = join(training, training.plans[2].next_life())
    statuses = [0, -signal.SIGKILL, 0, 0, 0, 0, 0]
    if (
        strategy == "backup_workers"
    ):  # whose steps need two gradients, and the newcomer's was perhaps never among the first
        # Traces are written once a second, and the kill must not come before the first.
        training.wait_for(lambda: len(rows_of(training, 1)) > 0)
        os.kill(one, signal.SIGKILL)
        statuses[0] = -signal.SIGKILL
        train_on(training, 2, training.pids[-1])
    assert end(training) == statuses, training.logs()
    done = training.done()
    assert done["stopped_by"] == "walltime"
    first, others, back = rows_of(training, 0), rows_of(training, 1), rows_of(training, 2, life=1)
    assert others["step"][0] == 0
    begun_with = np.concatenate([rows_of(training, 2), others])
    check_newcomer(first, joined_ns, begun_with, strategy)
    check_newcomer(back, asked_ns, np.concatenate([first, others]), strategy)
    steps = training.table("steps")
    assert not steps.duplicated(["step", "rank"]).any(), (
        "what it learnt in its first life it does not learn again"
    )
    assert len(steps[steps["rank"] == 2]) == len(rows_of(training, 2)) + len(back)
    if strategy == "parameter_server":
        assert (back["read_version"] == back["step"]).all()
        assert (others["applied_version"][:-1] == others["step"][:-1] + 1).all()
        assert (others["step"] < first["step"][0]).sum() == first["step"][0]
    if isinstance(strategy, dict):
        everybody = np.concatenate([back, first, others])
        assert ahead_of_others(everybody, back["start_ns"][0]) <= STALENESS + 1


def check_newcomer(rows: Rows, asked_ns: int, others: Rows, strategy: object) -> None:
    """It begins with the model as it is, and not as it was, and what it learns is learnt."""
    known = others[others["end_ns"] < asked_ns]["applied_version"].max()
    assert rows["step"][0] > 0
    assert rows["read_version"][0] >= known > 0
    assert (np.diff(rows["read_version"]) > 0).all()
    used = rows[:-1]["applied_version"] >= 0
    assert used.all() or (strategy == "backup_workers" and used.any())
    assert (rows["samples"][:-1] > 0).sum() == used.sum()


def ahead_of_others(rows: Rows, since_ns: int) -> int:
    """By how many steps anybody was ahead of anybody, of all who began a step since then."""
    started = {rank: rows[rows["rank"] == rank] for rank in np.unique(rows["rank"])}
    widest = 0
    for row in rows[rows["start_ns"] > since_ns]:
        for theirs in started.values():
            now = theirs[theirs["start_ns"] <= row["start_ns"]]
            widest = max(widest, int(row["step"] - now["step"][-1])) if len(now) else widest
    return widest


@pytest.mark.parametrize(
    ("written", "planned"),
    [
        ([{"at": "20s", "leaves": "edge.trainer.1.3"}, {"at": "5", "leaves": "edge.trainer.1.1"}],
         [(5, 1, False, 1), (20, 3, False, 0)]),
        ([{"at": "1min", "joins": "edge.*,!edge.trainer.1.2"}], [(60, 1, True, 0), (60, 3, True, 0)]),
        ([{"at": "1s", "leaves": "edge.trainer.1.4"}], []),
    ],
    ids=("by time", "several", "no worker"),
)  # fmt: skip
def test_turns_are_those_of_workers_by_time(
    written: Sequence[Mapping[str, str]], planned: list[tuple[float, int, bool, int]]
) -> None:
    found = turns(entries(*written).churn, HOSTS, HOSTS[:3])
    assert found == tuple(
        Turn(at, f"edge.trainer.1.{host}", joins, entry) for at, host, joins, entry in planned
    )


@pytest.mark.parametrize(
    ("story", "absent", "wrong"),
    [
        ("1-10 1+20 1-30", "", {}),
        ("1+10 1-20 1+30", "1", {}),
        ("1-10 1-20", "", {1: "already absent"}),
        ("1-10 1+20 1+30", "", {2: "already present"}),
        ("1-10 1+10", "", {}),
        ("1-10 2-10 3-10 1+20", "", {2: "no worker is left to train at 10 s"}),
        ("1+10 2+10 3+10", "123", {0: "no worker is present when training begins"}),
        ("2+10 1-10 3-10", "2", {}),
    ],
)
def test_who_is_absent_and_what_cannot_be(story: str, absent: str, wrong: dict[int, str]) -> None:
    kinds = {"+": "joins", "-": "leaves"}
    written = [
        {"at": each[2:], kinds[each[1]]: f"edge.trainer.1.{each[0]}"} for each in story.split()
    ]
    planned = turns(entries(*written).churn, HOSTS, HOSTS[:3])
    assert absent_at_start(planned) == {f"edge.trainer.1.{number}" for number in absent}
    found = {fault.entry: fault.rule for fault in faults(planned, HOSTS[:3])}
    assert found.keys() == wrong.keys()
    assert all(words in found[entry] for entry, words in wrong.items())


def test_an_update_is_the_mean_over_those_who_are_there() -> None:
    """Of 12 samples of a batch, rank 1's 4 are not learnt: the step is two thirds of one along the
    mean gradient of the other 8."""
    import torch
    from torch import nn

    from laggard.core.rules.bounded_staleness import BoundedStalenessRule
    from laggard.core.rules.server_rule import Push
    from laggard.workloads.models.flat_state import FlatState
    from laggard.workloads.serving.model_keeper import ModelKeeper

    torch.manual_seed(1)
    model = nn.Linear(5, 1)
    inputs, before = torch.randn(12, 5), FlatState(model).read()
    rule = BoundedStalenessRule(3, 0)
    rule.remove_member(1)
    keeper = ModelKeeper(model, torch.optim.SGD(model.parameters(), lr=0.5), 3)
    for rank in (0, 2):
        model.zero_grad()
        (model(inputs[4 * rank : 4 * rank + 4]).square().sum() * 3 / 12).backward()
        push = Push(rank, 0, 4, 12)
        keeper.hold(push, FlatState(model).read_gradients())
        updates = rule.push(push).updates
    model.zero_grad()
    model(torch.cat([inputs[:4], inputs[8:]])).square().mean().backward()
    expected = before - 0.5 * 2 / 3 * FlatState(model).read_gradients()
    (update,) = updates
    keeper.apply(update)
    torch.testing.assert_close(keeper.read(), expected)
