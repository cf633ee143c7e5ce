"""Real trainings of ranks that send each other messages, without a server, on real processes and
sockets."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from laggard.core.rules.graph import Graph, compute_mixing_weights, find_neighbors
from laggard.core.span_schema import Lane
from laggard.workloads.datasets import digits
from laggard.workloads.datasets.partition import Partition
from laggard.workloads.models import build_model
from laggard.workloads.models.flat_state import FlatState
from laggard.workloads.output.worker_output import read_lines
from laggard.workloads.tracing.heartbeat import read_heartbeats
from laggard.workloads.tracing.traffic import read_traffic
from tests.one_short import one_short
from tests.workloads.paced import name_held, name_hold, wide
from tests.workloads.test_churn import end, train_on

if TYPE_CHECKING:
    from tests.workloads.conftest import Train, Training

    Trained = Callable[[str], Training]

DIGITS = {
    "model": "mlp",
    "dataset": "digits",
    "batch_size": 96,
    "optimizer": {"lr": 0.05},
    "stop": {"steps": 300},
}
RARELY = {"evaluate_every": 10**9}
ENDLESS = {**DIGITS, **RARELY, "stop": {"steps": 10**6}}
OWN_PACE = [
    "gossip",
    "hop",
    pytest.param("fast_links", marks=pytest.mark.long),
    "ad_psgd",
    "partial_reduce",
    "overlap_local_sgd",
    pytest.param("adaptive", marks=pytest.mark.long),
]
MODELS = {
    "ad_psgd": "paced:unhurried",
    "partial_reduce": "paced:wide",
    "overlap_local_sgd": "paced:wide_unhurried",
    "adaptive": "paced:wide_unhurried",
}


@pytest.fixture(scope="module")
def baseline(train: Train) -> Training:
    return train(DIGITS, 3)


@pytest.fixture(scope="module")
def trained(train: Train) -> Trained:
    """One training with each strategy, for all tests of it."""

    @cache
    def train_with(name: str) -> Training:
        return train({**DIGITS, "model": MODELS.get(name, "mlp"), "strategy": name}, 3)

    return train_with


def accuracy(training: Training) -> float:
    """Where it has settled: the median of the evaluations after step 200, of which each by itself
    is off by half a point. How many there are depends on what else the machine does."""
    evaluations = read_lines(training.output_dir.evaluations)
    settled = [line for line in evaluations if int(line["step"] or 0) > 200]
    return float(np.median([float(line["accuracy"] or 0) for line in settled]))


@pytest.mark.parametrize("name", one_short(OWN_PACE))
def test_digits_are_learnt_as_well_as_with_all_reduce(
    trained: Trained, baseline: Training, name: str
) -> None:
    done = trained(name).done()
    assert done["stopped_by"] == "steps"
    assert done["samples"] >= baseline.done()["samples"]
    assert accuracy(trained(name)) >= accuracy(baseline) - 0.02


@pytest.mark.parametrize("name", one_short(OWN_PACE))
def test_spans_tile_every_rank(trained: Trained, name: str) -> None:
    spans = trained(name).table("spans")
    for _, of_rank in spans[spans.lane == Lane.MAIN].groupby("rank"):
        ordered = of_rank.sort_values(["start_ns", "step", "seq"])
        start, duration = ordered.start_ns.to_numpy(), ordered.dur_ns.to_numpy()
        assert start[0] == 0
        assert np.array_equal(start[1:], start[:-1] + duration[:-1])


@pytest.mark.parametrize("name", one_short(OWN_PACE))
def test_what_ranks_say_they_sent_is_what_kernels_acknowledged(trained: Trained, name: str) -> None:
    """Within 1 %: a model of 38 kB has some 200 bytes around it, acknowledgement included."""
    for each in read_traffic(trained(name).output_dir, range(3)):
        assert each.payload_bytes is not None
        assert each.payload_bytes > 1e6
        assert each.acked_bytes == pytest.approx(each.payload_bytes, rel=0.01)


def test_gossip_receives_a_model_of_every_neighbour_in_each_step(
    trained: Trained,
) -> None:
    """A model that comes early is received in the step before the one that needs it."""
    spans = trained("gossip").table("spans")
    state = FlatState(build_model("mlp", (1, 8, 8), 10, 1))
    comm = spans[(spans.phase == "comm") & (spans.bytes > 0)]
    assert set(comm.bytes % state.bytes) == {0}
    for _, of_rank in spans.groupby("rank"):
        steps = of_rank.step.nunique()
        received = of_rank[of_rank.phase == "comm"].bytes.sum() / state.bytes
        assert steps >= 295
        assert abs(received - 2 * steps) <= 4


@pytest.mark.parametrize("graph", ["ring", pytest.param("complete", marks=pytest.mark.long)])
@pytest.mark.parametrize("name", ["gossip", "hop"])
def test_without_slack_it_is_the_recursion_of_d_psgd(train: Train, graph: str, name: str) -> None:
    """x_i <- (sum over j of W_ij x_j) - lr * g_i(x_i), with equal weights in both graphs of four;
    here with heavy-ball momentum in place of g_i."""
    slack = {"staleness": 0, "backups": 0, "skip": 0} if name == "hop" else {}
    strategy = {"name": name, "graph": graph, **slack}
    optimizer = {"lr": 0.05, "momentum": 0.8}
    workload = {**DIGITS, **RARELY, "batch_size": 97, "optimizer": optimizer, "stop": {"steps": 20}}
    steps = train({**workload, "strategy": strategy}, 4).table("steps")
    expected = d_psgd(steps=20, world=4, batch_size=97, momentum=0.8, ring=graph == "ring")
    assert len(steps) >= 60
    for step, rank, loss in zip(steps.step, steps["rank"], steps.loss, strict=True):
        if step < 20:
            assert loss == pytest.approx(expected[rank, step], rel=1e-4)
    assert (steps.staleness == 0).all()
    assert (steps.skipped == 0).all()


def d_psgd(*, steps: int, world: int, batch_size: int, momentum: float, ring: bool) -> np.ndarray:
    """Losses of all ranks and steps, [W, S], computed by one process."""
    data = digits.load()
    inputs = torch.from_numpy(data.train_inputs).float() * data.scale + data.shift
    labels = torch.from_numpy(data.train_labels)
    partition = Partition(len(labels), batch_size, world, seed=1)
    net = build_model("mlp", (1, 8, 8), 10, 1)
    models = [nn.utils.parameters_to_vector(net.parameters()).detach()] * world
    velocity = [torch.zeros_like(models[0])] * world
    losses = np.empty((world, steps))
    for step in range(steps):
        moved = []
        for rank in range(world):
            nn.utils.vector_to_parameters(models[rank].clone(), net.parameters())
            share = partition.share(step, rank)
            summed = cross_entropy(
                net(inputs[share.indices]), labels[share.indices], reduction="sum"
            )
            gradient = torch.autograd.grad(
                summed * world / share.batch_size, list(net.parameters())
            )
            losses[rank, step] = summed.item() / len(share.indices)
            beside = {rank - 1, rank, rank + 1} if ring else set(range(world))
            mean = torch.stack([models[other % world] for other in beside]).mean(dim=0)
            own = nn.utils.parameters_to_vector(gradient)
            velocity[rank] = momentum * velocity[rank] + own
            moved.append(mean - 0.05 * velocity[rank])
        models = moved
    return losses


def test_hop_says_which_steps_were_left_out_and_how_old_models_were(
    trained: Trained,
) -> None:
    steps = trained("hop").table("steps").sort_values(["rank", "step"])
    for _, of_rank in steps.groupby("rank"):
        left_out = np.diff(of_rank.step, prepend=-1) - 1
        np.testing.assert_array_equal(of_rank.skipped, left_out)
        assert left_out.max() <= 4
    assert steps.staleness.between(0, 4).all()


def test_hop_jumps_to_where_its_neighbours_are(train: Train) -> None:
    """A rank that stands still holds the others up only once they are as far ahead as models may be
    old, and one step; then it leaves steps out."""
    training = train({**ENDLESS, "model": "paced:held", "strategy": "hop"}, 3, wait=False)
    training.begin()
    training.wait_for(lambda: step_of(training, 2) > 5)
    # Not stopped: a stopped process would not send what is still in its queues.
    hold, held = name_hold(training.pids[2]), name_held(training.pids[2])
    hold.touch()
    training.wait_for(held.exists)
    furthest = step_of(training, 2) + 5
    training.wait_for(lambda: min(step_of(training, 0), step_of(training, 1)) >= furthest)
    assert max(step_of(training, 0), step_of(training, 1)) == furthest
    hold.unlink()
    train_on(training, 2, training.pids[2], 10)
    assert end(training) == [0] * 5, training.logs()
    steps = training.table("steps")
    assert steps[steps["rank"] == 2].skipped.max() >= 1


def step_of(training: Training, rank: int) -> int:
    return read_heartbeats(training.output_dir.heartbeat, 3)[rank].step


@pytest.mark.parametrize("name", ["gossip", pytest.param("ad_psgd", marks=pytest.mark.long)])
def test_batch_norm_is_learnt_too_and_accuracy_ends_training(train: Train, name: str) -> None:
    """Its statistics are no parameters: they move in the forward pass, and are averaged with the
    rest."""
    workload = {**DIGITS, "model": "resnet8", "strategy": name, "evaluate_every": 96 * 8}
    done = train({**workload, "stop": {"accuracy": 0.85, "steps": 2000}}, 3).done()
    assert done["stopped_by"] == "accuracy"
    assert done["accuracy"] >= 0.85
    assert done["steps"] < 2000


def test_models_sent_beside_are_on_a_lane_of_their_own(trained: Trained) -> None:
    """All of them; and the main lane has nothing but waiting for the lock."""
    spans = trained("ad_psgd").table("spans")
    main, beside = spans[spans.lane == Lane.MAIN], spans[spans.lane == Lane.BACKGROUND]
    assert (main.bytes == 0).all()
    state = FlatState(build_model("mlp", (1, 8, 8), 10, 1))
    assert set(beside.bytes) == {state.bytes}
    assert (beside.dur_ns > 0).all()
    assert set(beside[beside["rank"] != 1].peer) == {1}, (
        "the middle one is passive, and the others' only partner"
    )
    assert len(beside) > 30
    assert beside.bytes.sum() == sum(
        each.payload_bytes or 0 for each in read_traffic(trained("ad_psgd").output_dir, range(3))
    )


def test_staleness_counts_the_averages_between_reading_and_applying(
    trained: Trained,
) -> None:
    steps, spans = trained("ad_psgd").table("steps"), trained("ad_psgd").table("spans")
    assert (steps.staleness == steps.applied_version - 1 - steps.read_version).all()
    assert (steps.waited_for == -1).all()
    beside = spans[spans.lane == Lane.BACKGROUND]
    for rank, of_rank in steps.groupby("rank"):
        exchanges = of_rank.applied_version.max() - len(of_rank)
        # Whoever has answered has been moved, and so has whoever was answered, but for exchanges
        # that the end cut off. After its last step a rank still answers the others.
        sent = (beside["rank"] == rank) & (beside.start_ns < of_rank.end_ns.max())
        assert abs(exchanges - sent.sum()) <= 3
        assert of_rank.staleness.max() >= 1


def test_groups_tell_whom_they_waited_for_and_what_they_sent(trained: Trained) -> None:
    """Two of three are in a group: each sends half its model twice; who was last waited for
    nobody."""
    spans, steps = (
        trained("partial_reduce").table("spans"),
        trained("partial_reduce").table("steps"),
    )
    comm = spans[spans.phase == "comm"]
    state = FlatState(wide((1, 8, 8), 10))
    averages = comm[comm.bytes > 0]
    assert abs(averages.bytes - state.bytes).max() <= 4
    assert set(spans.lane) == {Lane.MAIN}
    # Who was in no group any more when training ended.
    assert 0 <= len(steps) - len(averages) <= 3
    waited = steps[steps.waited_for >= 0]
    assert (waited.waited_for != waited["rank"]).all()
    assert len(waited) == pytest.approx(len(steps) / 2, abs=0.1 * len(steps))
    waits = comm[(comm.bytes == 0) & (comm.peer >= 0)]
    assert dict(zip(zip(waits.step, waits["rank"], strict=True), waits.peer, strict=True)) == dict(
        zip(zip(waited.step, waited["rank"], strict=True), waited.waited_for, strict=True)
    )
    sent = sum(
        each.payload_bytes or 0
        for each in read_traffic(trained("partial_reduce").output_dir, range(3))
    )
    assert averages.bytes.sum() == pytest.approx(sent, rel=0.01)


@pytest.mark.parametrize(
    "optimizer",
    [pytest.param({"lr": 0.05}, marks=pytest.mark.long), {"name": "adamw", "lr": 0.001}],
)
def test_the_ring_trains_as_all_reduce_does_and_sends_what_an_optimal_one_does(
    train: Train, optimizer: dict[str, object]
) -> None:
    """The same steps but for the order of sums; 97 samples on three ranks are uneven."""
    workload = {**DIGITS, **RARELY, "batch_size": 97, "optimizer": optimizer, "stop": {"steps": 12}}
    training = train({**workload, "strategy": "ring_allreduce"}, 3)
    ring, ddp = losses(training), losses(train(workload, 3))
    assert len(ring) == 36
    np.testing.assert_allclose(ring, ddp, rtol=1e-4)
    spans = training.table("spans")
    state = FlatState(build_model("mlp", (1, 8, 8), 10, 1))
    comm = spans[spans.phase == "comm"]
    assert set(comm.group) == {0}
    assert comm.bytes.sum() == 12 * 2 * 2 * state.bytes
    traffic = read_traffic(training.output_dir, range(3))
    assert sum(each.payload_bytes or 0 for each in traffic) == comm.bytes.sum()
    for each in traffic:
        assert each.acked_bytes == pytest.approx(each.payload_bytes, rel=0.05), (
            "chunks of a third of a small model"
        )


def losses(training: Training) -> np.ndarray:
    return training.table("steps").sort_values(["rank", "step"]).loss.to_numpy()


def test_a_ring_ends_when_a_rank_is_killed(train: Train) -> None:
    training = train({**ENDLESS, "strategy": "ring_allreduce"}, 3, wait=False)
    training.begin()
    training.wait_for(lambda: bool(read_lines(training.output_dir.progress)))
    os.kill(training.pids[2], signal.SIGKILL)
    assert training.forkery.wait(training.pids) == [1, 1, -signal.SIGKILL]
    # Who of the other two notices first ends too, and may be who the last one misses.
    assert (
        "rank 2 is gone: connection reset"
        in training.log("0").read_text() + training.log("1").read_text()
    )
    for pid in training.aside:
        os.kill(pid, signal.SIGTERM)
    training.forkery.wait(training.aside)


@pytest.mark.long
def test_groups_go_on_without_their_generator(train: Train) -> None:
    training = train({**ENDLESS, "strategy": "partial_reduce"}, 4, wait=False)
    training.begin()
    training.wait_for(lambda: bool(read_lines(training.output_dir.progress)))
    os.kill(training.pids[0], signal.SIGKILL)
    killed_ns = time.monotonic_ns()
    for rank in (1, 2, 3):
        train_on(training, rank, training.pids[rank], 40)
    assert end(training) == [-signal.SIGKILL, 0, 0, 0, 0, 0], training.logs()
    assert training.done()["accuracy"] > 0.9
    steps = training.table("steps")
    after = steps[steps.start_ns > killed_ns - int(training.done()["zero_ns"])]
    assert set(after["rank"]) == {1, 2, 3}
    assert (after.groupby("rank").size() > 30).all()
    assert (after.waited_for >= 1).any()


@given(st.sampled_from(["ring", "complete"]), st.sets(st.integers(0, 30), min_size=1, max_size=12))
def test_mixing_keeps_the_average_and_converges(graph: Graph, there: set[int]) -> None:
    """Symmetric and doubly stochastic; all eigenvalues but one are smaller than 1, so models become
    one (Lian et al., assumption 1)."""
    ranks = sorted(there)
    matrix = np.zeros((len(ranks), len(ranks)))
    for i, rank in enumerate(ranks):
        row = compute_mixing_weights(graph, ranks, rank)
        assert set(row) == {rank, *find_neighbors(graph, ranks, rank)}
        for other, weight in row.items():
            matrix[i, ranks.index(other)] = weight
    np.testing.assert_allclose(matrix, matrix.T)
    np.testing.assert_allclose(matrix.sum(axis=0), 1.0)
    assert (matrix >= 0).all()
    sizes = np.sort(np.abs(np.linalg.eigvalsh(matrix)))[::-1]
    assert len(sizes) == 1 or sizes[1] < 1 - 1e-6
