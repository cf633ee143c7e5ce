"""Federated trainings over loopback, against the same rounds in one process."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from laggard.analysis.tables.load_run import load_run
from laggard.workloads.clients.client_partition import ClientPartition
from laggard.workloads.datasets import open_data
from laggard.workloads.models.flat_state import FlatState
from laggard.workloads.models.model_state import load_state
from laggard.workloads.models.optimizers import build_optimizer
from laggard.workloads.output.worker_output import read_lines
from laggard.workloads.streams.plan_partition import plan_partition
from laggard.workloads.workload import Workload
from laggard.workloads.workload_model import build_workload_model
from tests.one_short import one_short
from tests.workloads.test_churn import end, train_on

if TYPE_CHECKING:
    from tests.workloads.conftest import Train, Training

ROUNDS, WORLD = 3, 3
SMALL = {
    "model": "mlp",
    "dataset": "digits",
    "births": {"concentration": 0.5},
    "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.5},
    "stop": {"steps": ROUNDS},
    "save_weights": True,
    "evaluate_every": 10**9,
    "seed": 7,
}
ALL = {"name": "federated", "clients": WORLD, "local_epochs": 2}


def train_alone(workload: Workload, folder: object) -> torch.Tensor:
    """The model after all rounds, shape [parameters]: every client trains on a copy, one after
    another, and the server follows their mean change."""
    data = open_data(workload, folder)  # type: ignore[arg-type]
    partition = plan_partition(workload, data, WORLD, ["edge"] * WORLD)
    model = build_workload_model(workload, data)
    state, strategy = FlatState(model), workload.strategy
    server = build_optimizer(strategy.server, model)  # type: ignore[attr-defined]
    for number in range(ROUNDS):
        begun, changes, total = state.read(), torch.zeros(state.parameters), 0
        for client in range(WORLD):
            state.write(begun)
            own = partition.share(number, client).indices
            batch = data.train.prepare(data.train.fetch(own))
            optimizer = build_optimizer(workload.optimizer, model)
            seed = (workload.seed * 1_000_003 + client) * 1_000_003 + number
            generator = torch.Generator().manual_seed(seed)
            for _ in range(strategy.local_epochs):  # type: ignore[attr-defined]
                order = torch.randperm(len(own), generator=generator)
                for first in range(0, len(own), 32):
                    places = order[first : first + 32]
                    optimizer.zero_grad()
                    loss = cross_entropy(model(batch.inputs[places]), batch.labels[places])
                    weights = torch.cat([each.flatten() for each in model.parameters()])
                    away = (weights - begun[: state.parameters]).square().sum()
                    (loss + strategy.proximal / 2 * away).backward()  # type: ignore[attr-defined]
                    optimizer.step()
            changes += len(own) * (begun - state.read())[: state.parameters]
            total += len(own)
        state.write(begun)
        state.write_gradients(changes / total)
        server.step()
    return state.read()


def load_weights(training: Training) -> Mapping[str, torch.Tensor]:
    """Weights of the last evaluation, which is after the last round."""
    return load_state(training.output_dir.weights)["model"]  # type: ignore[return-value]


@pytest.mark.parametrize(
    "more",
    one_short(
        [
            {},
            {"proximal": 0.1},
            {"server": {"name": "adam", "lr": 0.01}},
        ]
    ),
)
def test_rounds_are_those_of_one_process(train: Train, more: dict[str, object]) -> None:
    training = train({**SMALL, "strategy": ALL | more}, WORLD)
    workload = training.plans[0].workload
    alone = train_alone(workload, training.output_dir.folder)
    model = build_workload_model(workload, open_data(workload, training.output_dir.folder))
    model.load_state_dict(load_weights(training))
    assert FlatState(model).read().numpy() == pytest.approx(alone.numpy(), rel=1e-4, abs=1e-5)
    steps, done = training.table("steps"), training.done()
    assert (done["steps"], done["stopped_by"], done["versions"]) == (ROUNDS, "steps", ROUNDS)
    assert sorted(zip(steps["rank"], steps.step, strict=True)) == [
        (rank, step) for rank in range(WORLD) for step in range(ROUNDS)
    ]
    assert (steps.staleness == 0).all()


def test_chosen_clients_learn_and_answers_beyond_a_round_are_dropped(train: Train) -> None:
    strategy = {"name": "federated", "clients": 2, "over_commitment": 1.5, "selection": "oort"}
    training = train({**SMALL, "strategy": strategy, "stop": {"steps": 40}}, 5)
    steps = training.table("steps")
    applied = steps[steps.applied_version >= 0]
    assert (applied.groupby("applied_version").size() == 2).all()
    assert set(applied.applied_version) == set(range(1, 41))
    federated = load_run(training.collect()).federated
    assert federated is not None
    assert [each.round for each in federated.rounds] == [*range(40)]
    asked = [{each.rank: each for each in one.answers} for one in federated.rounds]
    assert {len(each) for each in asked} <= {1, 2, 3}, "those that train are not asked"
    by_version = applied.groupby("applied_version")["rank"]
    for number, (one, answers) in enumerate(zip(federated.rounds, asked, strict=True)):
        accepted = {*one.list_clients("accepted")}
        assert accepted == {*by_version.get_group(number + 1)}
        assert all((answers[rank].took_s or 0) > 0 for rank in accepted)
    ends_s = [each.ended_s for each in federated.rounds]
    assert ends_s == sorted(ends_s)
    assert 0 < ends_s[-1] <= training.done()["makespan_s"]
    last = federated.evaluations[-1]
    assert 0.3 < last.worst <= last.mean <= 1
    late = steps[steps.applied_version < 0]
    assert len(late), "a third client is asked in each round"
    assert (late.samples == 0).all()
    assert float(read_lines(training.output_dir.evaluations)[-1]["accuracy"] or 0) > 0.75


def test_with_a_buffer_clients_train_on_while_others_answer(train: Train) -> None:
    strategy = {"name": "federated", "clients": 3, "buffer": 2}
    training = train({**SMALL, "strategy": strategy, "stop": {"steps": 30}}, 4)
    steps, done = training.table("steps"), training.done()
    assert (done["steps"], done["versions"]) == (30, 30)
    applied = steps[steps.applied_version >= 0]
    assert (applied.groupby("applied_version").size() == 2).all()
    ages = applied.applied_version - 1 - applied.read_version
    assert (applied.staleness == ages).all()
    assert ages.max() > 0, "an answer that waited for its update is older than one"
    federated = load_run(training.collect()).federated
    assert federated is not None
    assert [each.round for each in federated.rounds] == [*range(30)]
    assert {len(each.list_clients("accepted")) for each in federated.rounds} == {2}
    assert float(read_lines(training.output_dir.evaluations)[-1]["accuracy"] or 0) > 0.6


def test_rounds_go_on_when_a_client_is_lost(train: Train) -> None:
    strategy = {"name": "federated", "clients": 2}
    stop = {"steps": 100_000}
    training = train({**SMALL, "strategy": strategy, "stop": stop}, 3, wait=False)
    training.begin()
    train_on(training, 1, training.pids[1], 3)
    os.kill(training.pids[1], signal.SIGKILL)
    for rank in (0, 2):
        train_on(training, rank, training.pids[rank], 5)
    statuses = end(training)
    assert statuses[1] == -signal.SIGKILL


def test_clients_have_all_samples_and_each_one_once() -> None:
    owners = np.array([2, 0, 0, 1, 2, 2, 0])
    for given in (owners, None):
        partition = ClientPartition(7, 7, 3, 1, given)
        shares = [partition.share(4, client) for client in range(3)]
        assert sorted(np.concatenate([each.indices for each in shares]).tolist()) == [*range(7)]
        assert {each.batch_size for each in shares} == {7}
        again = partition.share(9, 2).indices
        assert sorted(again.tolist()) == sorted(shares[2].indices.tolist())
    assert partition.ends_with_step


@pytest.mark.parametrize(
    ("more", "cause"),
    [
        ({"model": "paced:no_number"}, "answered with numbers that are not finite"),
        ({"strategy": {"name": "federated", "clients": 2, "deadline": "1ms"}}, "strategy.deadline"),
    ],
)
def test_a_training_without_usable_answers_ends_with_a_message(
    train: Train, more: dict[str, object], cause: str
) -> None:
    strategy = {"name": "federated", "clients": 2}
    workload = {**SMALL, "strategy": strategy, "stop": {"steps": 1000}, **more}
    training = train(workload, 3, wait=False)
    training.begin()
    server = training.aside[-1]
    assert training.forkery.wait([server]) == [1]
    said = training.log("server").read_text()
    assert cause in said
    assert "10 rounds in a row had no answer that could be used" in said
    for pid in (*training.pids, *training.aside[:-1]):
        os.kill(pid, signal.SIGKILL)
    training.forkery.wait([*training.pids, *training.aside[:-1]])
