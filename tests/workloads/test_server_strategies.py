"""Real trainings with a server, on real processes and sockets."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from laggard.workloads.models import build_model
from laggard.workloads.models.flat_state import FlatState
from laggard.workloads.output.worker_output import read_lines
from laggard.workloads.tracing.heartbeat import read_heartbeats
from laggard.workloads.tracing.traffic import read_traffic
from tests.one_short import one_short
from tests.workloads.test_churn import end, train_on

if TYPE_CHECKING:
    from tests.workloads.conftest import Train, Training

    Trained = Callable[[str], Training]

SERVER = 3
DIGITS = {
    "model": "mlp",
    "dataset": "digits",
    "batch_size": 96,
    "optimizer": {"lr": 0.05},
    "stop": {"steps": 300},
}
RARELY = {"evaluate_every": 10**9}
SHORT = {**DIGITS, "model": "resnet8", "stop": {"steps": 12}, **RARELY}


STRATEGIES: Mapping[str, object] = {
    "parameter_server": "parameter_server",
    "asynchronous": "asynchronous",
    "bounded_staleness": {"name": "bounded_staleness", "staleness": 2},
    "backup_workers": "backup_workers",
}
NAMES = one_short(STRATEGIES)


@pytest.fixture(scope="module")
def trained(train: Train) -> Trained:
    """One training with each strategy, for all tests of it."""

    @cache
    def train_with(name: str) -> Training:
        return train({**DIGITS, "strategy": STRATEGIES[name]}, 3)

    return train_with


@pytest.mark.parametrize("name", NAMES)
def test_digits_are_learnt_as_well_as_with_all_reduce(trained: Trained, name: str) -> None:
    """The parameter server does what all-reduce does, which another test shows step by step."""
    done, synchronous = trained(name).done(), trained("parameter_server").done()
    assert done["stopped_by"] == "steps"
    assert synchronous["samples"] <= done["samples"] <= synchronous["samples"] + 96
    assert _accuracy(trained("parameter_server")) > 0.9
    assert _accuracy(trained(name)) >= _accuracy(trained("parameter_server")) - 0.02
    assert done["makespan_s"] > 0


def _accuracy(training: Training) -> float:
    """Where it has settled: the median of the last seven evaluations, of which each by itself is
    off by half a point."""
    evaluations = read_lines(training.output_dir.evaluations)
    assert len(evaluations) >= 20
    return float(np.median([float(line["accuracy"] or 0) for line in evaluations[-7:]]))


@pytest.mark.parametrize("name", NAMES)
def test_tables_tell_what_became_of_every_gradient(trained: Trained, name: str) -> None:
    training = trained(name)
    steps, done = training.table("steps"), training.done()
    assert steps.samples.sum() == done["samples"]
    applied = steps[steps.samples > 0]
    assert (applied.staleness == applied.applied_version - 1 - applied.read_version).all()
    assert (applied.dropped == 0).all()
    assert set(applied.applied_version) == set(range(1, int(done["versions"]) + 1))
    assert (steps[steps.samples == 0].applied_version == -1).all()
    if name == "parameter_server":
        assert done["versions"] == 300
        assert (steps.staleness == 0).all()
        assert (steps.read_version == steps.step).all()
    if name == "backup_workers":
        assert (applied.groupby("applied_version").size() == 2).all()
        assert (applied.staleness == 0).all()
    waited = steps[steps.waited_for >= 0]
    assert (waited.waited_for != waited["rank"]).all()
    if name == "asynchronous":
        assert not len(waited)


@pytest.mark.parametrize("name", NAMES)
def test_spans_tile_every_rank_and_say_what_was_sent(trained: Trained, name: str) -> None:
    spans = trained(name).table("spans")
    state = FlatState(build_model("mlp", (1, 8, 8), 10, 1))
    comm = spans[spans.phase == "comm"]
    assert set(comm.bytes) == {state.bytes, 0}
    received = comm[(comm.bytes > 0)].groupby("rank").size() - comm.groupby("rank").step.nunique()
    assert (received == comm.groupby("rank").step.nunique() - 1).all(), (
        "the last answer carries no model"
    )
    assert set(comm.peer[comm.bytes > 0]) == {SERVER}
    steps = trained(name).table("steps")
    waits = comm[(comm.bytes == 0) & (comm.peer < SERVER)]
    waited = steps[steps.waited_for >= 0]
    if name != "parameter_server":
        assert dict(
            zip(zip(waits.step, waits["rank"], strict=True), waits.peer, strict=True)
        ) == dict(
            zip(zip(waited.step, waited["rank"], strict=True), waited.waited_for, strict=True)
        )
    assert set(comm.group) == ({-1, 0} if name == "parameter_server" else {-1})
    for _, of_rank in spans.groupby("rank"):
        ordered = of_rank.sort_values(["start_ns", "step", "seq"])
        start, duration = ordered.start_ns.to_numpy(), ordered.dur_ns.to_numpy()
        assert start[0] == 0
        assert np.array_equal(start[1:], start[:-1] + duration[:-1])
    assert "evaluate" not in set(spans.phase)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_said_to_be_sent_is_what_kernels_acknowledged(trained: Trained, name: str) -> None:
    """Of every worker and of the server, within 1 %."""
    traffic = read_traffic(trained(name).output_dir, range(4))
    assert len(traffic) == 4
    for each in traffic:
        assert each.payload_bytes is not None
        assert each.payload_bytes > 1e6
        assert each.acked_bytes == pytest.approx(each.payload_bytes, rel=0.01)


@pytest.mark.long
def test_evaluations_go_on_beside_the_training(trained: Trained) -> None:
    """One after each pass over the data of 15 steps, and the last at the end."""
    evaluated = trained("asynchronous").table("steps").dropna(subset=["accuracy"])
    assert trained("asynchronous").done()["evaluations"] == 300 // 15
    assert len(evaluated) == 300 // 15 - 1
    assert (
        evaluated.sort_values("end_ns").accuracy.iloc[-1]
        > evaluated.sort_values("end_ns").accuracy.iloc[0]
    )


def losses(training: Training) -> np.ndarray:
    return training.table("steps").sort_values(["rank", "step"]).loss.to_numpy()


@pytest.mark.long
def test_without_staleness_it_is_the_parameter_server_bit_for_bit(train: Train) -> None:
    """And with no backups too; BatchNorm's statistics included, and uneven batches."""
    server = losses(train({**SHORT, "strategy": "parameter_server"}, 3))
    assert len(server) == 36
    for strategy in (
        {"name": "bounded_staleness", "staleness": 0},
        {"name": "backup_workers", "backups": 0},
    ):
        assert np.array_equal(server, losses(train({**SHORT, "strategy": strategy}, 3)))


@pytest.mark.parametrize(
    "optimizer",
    [pytest.param({"lr": 0.05}, marks=pytest.mark.long), {"name": "adamw", "lr": 0.001}],
)
def test_the_parameter_server_trains_as_all_reduce_does(
    train: Train, optimizer: dict[str, object]
) -> None:
    """The same steps but for the order of sums."""
    workload = {**SHORT, "model": "mlp", "optimizer": optimizer}
    server, ddp = (
        losses(train({**workload, "strategy": "parameter_server"}, 3)),
        losses(train(workload, 3)),
    )
    np.testing.assert_allclose(server, ddp, rtol=1e-4)


UNSTEADY = """
import random, time
import numpy as np
from torch import nn

class Unsteady(nn.Module):
    def __init__(self, size, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(size, classes))
        self.delays = random.Random(time.monotonic_ns())
    def forward(self, x):
        if self.training:
            time.sleep(self.delays.expovariate(1 / 0.006))
        return self.layers(x)

def model(shape, classes):
    return Unsteady(int(np.prod(shape)), classes)
"""


def waits_for_last(training: Training, staleness: int) -> bool:
    """Whether the first two ranks are as far ahead of the last one as they may be, and stay."""
    *ahead, last = read_heartbeats(training.output_dir.heartbeat, 3)
    still_ns = time.monotonic_ns() - 300_000_000
    return all(
        beat.step >= last.step + staleness and beat.phase == "comm" and beat.time_ns < still_ns
        for beat in ahead
    )


@pytest.mark.parametrize("staleness", [1, pytest.param(3, marks=pytest.mark.long)])
def test_nobody_is_ahead_by_more_than_the_bound(
    train: Train, tmp_path: Path, staleness: int
) -> None:
    """Of workers whose steps take random times: before one begins step c, all others have pushed
    their gradient of step c - s - 1. One of them stands still in between."""
    (tmp_path / "unsteady.py").write_text(UNSTEADY)
    strategy = {"name": "bounded_staleness", "staleness": staleness}
    workload = {
        **DIGITS,
        **RARELY,
        "model": "unsteady:model",
        "strategy": strategy,
        "stop": {"steps": 10**6},
    }
    training = train(workload, 3, path=tmp_path, wait=False)
    training.begin()
    train_on(training, 2, training.pids[2])
    os.kill(training.pids[2], signal.SIGSTOP)
    training.wait_for(lambda: waits_for_last(training, staleness))
    os.kill(training.pids[2], signal.SIGCONT)
    train_on(training, 2, training.pids[2])
    assert end(training) == [0] * 6, training.logs()
    spans, steps = training.table("spans"), training.table("steps")
    pushes = (
        spans[(spans.phase == "comm") & (spans.bytes > 0)].groupby(["rank", "step"]).start_ns.min()
    )
    ahead = 0
    for row in steps.itertuples():
        for other in {0, 1, 2} - {row.rank}:
            if row.step - staleness - 1 >= 0:
                assert pushes[other, row.step - staleness - 1] <= row.start_ns
            begun = pushes[other][pushes[other] <= row.start_ns]
            ahead = max(ahead, row.step - (len(begun)))
    assert ahead == staleness
    assert (steps.waited_for == 2).any()
    assert steps.staleness.max() > 0


def test_accuracy_ends_training(train: Train) -> None:
    workload = {**DIGITS, "strategy": "asynchronous", "stop": {"accuracy": 0.9, "steps": 2000}}
    training = train(workload, 2)
    done = training.done()
    assert done["stopped_by"] == "accuracy"
    assert done["accuracy"] >= 0.9
    assert done["steps"] < 2000


def test_workers_end_when_the_server_does(train: Train) -> None:
    training = train(
        {**DIGITS, **RARELY, "strategy": "asynchronous", "stop": {"steps": 10**6}}, 2, wait=False
    )
    training.begin()
    training.wait_for(lambda: bool(read_lines(training.output_dir.progress)))
    evaluator, sampler, server = training.aside
    os.kill(server, signal.SIGKILL)
    assert training.forkery.wait(training.pids) == [1, 1]
    assert "the connection to node 2 is broken: connection reset" in training.log("0").read_text()
    for pid in (evaluator, sampler):
        os.kill(pid, signal.SIGTERM)
    training.forkery.wait([evaluator, sampler, server])
