"""Clients of a training over loopback are paid as those of the same training in virtual time."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from laggard.core.rules.server_rule import Push, Update
from laggard.workloads.output.worker_output import WorkerOutputDir
from laggard.workloads.serving.pay_clients import pay_recorded_clients
from laggard.workloads.serving.update_record import RecordedUpdate, read_updates, write_update
from tests.virtual.federated_scenario import SHARES
from tests.virtual.test_federated_simulation import simulate

if TYPE_CHECKING:
    from tests.workloads.conftest import Train

WORLD, ROUNDS = len(SHARES), 6


def describe_training(free_rider: str, liar: str) -> dict[str, object]:
    tokens = {"fee": 10, "free_riders": free_rider, "claims": {liar: 39}}
    return {
        "model": "mlp",
        "dataset": "digits",
        "births": None,
        "strategy": {"name": "federated", "clients": WORLD, "tokens": tokens},
        "optimizer": {"name": "sgd", "lr": 0.02},
        "stop": {"steps": ROUNDS},
        "evaluate_every": 10**9,
        "seed": 3,
    }


def test_the_ledger_is_that_of_the_same_training_in_virtual_time(
    train: Train, tmp_path: Path
) -> None:
    training = train(describe_training("edge.trainer.1.1", "edge.trainer.1.2"), WORLD)
    workload = training.plans[0].workload
    pay_recorded_clients(workload, training.hosts, training.output_dir)
    virtual, _ = simulate(tmp_path, describe_training("edge.client.1.1", "edge.client.1.2"))
    ledger = training.output_dir.ledger.read_text()
    assert ledger == virtual.ledger.read_text()
    assert len(ledger.splitlines()) == 2 * WORLD * ROUNDS
    # A second payment, after a kill in the middle of the first one, gives the same ledger.
    pay_recorded_clients(workload, training.hosts, training.output_dir)
    assert training.output_dir.ledger.read_text() == ledger
    steps = training.table("steps")
    assert steps[steps["rank"] == 0].loss.isna().all()
    assert steps[steps["rank"] != 0].loss.notna().all()


def test_an_update_is_what_was_recorded(tmp_path: Path) -> None:
    output_dir = WorkerOutputDir(tmp_path)
    changes = {2: torch.tensor([4.0, 8.0]), 5: torch.tensor([1.0, -1.0])}
    pushes = (Push(2, 7, 10, 60), Push(5, 6, 20, 60))
    update = Update(pushes, 1.0, 8, {2: 1.0, 5: 0.5})
    model = torch.tensor([1.0, 1.0, 9.0])
    write_update(output_dir, RecordedUpdate(update, model, changes, 6))
    write_update(output_dir, RecordedUpdate(update, 2 * model, changes, 6))
    first, second = read_updates(output_dir, 6)
    assert [each.rank for each in first.update.pushes] == [2, 5]
    assert second.model.tolist() == [2.0, 2.0, 18.0]
    # 60 samples of all over 6 clients times 30 samples of the update: a third.
    assert first.preview(()).tolist() == [1.0, 1.0, 9.0]
    assert first.preview(pushes[:1]).tolist() == pytest.approx([1 - 4 / 3, 1 - 8 / 3, 9.0])
    assert first.preview(pushes[1:]).tolist() == pytest.approx([1 - 0.5 / 3, 1 + 0.5 / 3, 9.0])


def test_a_damaged_record_leaves_no_ledger(train: Train, caplog: pytest.LogCaptureFixture) -> None:
    training = train(describe_training("edge.trainer.1.1", "edge.trainer.1.2"), WORLD)
    workload = training.plans[0].workload
    path = training.output_dir.updates
    whole = path.read_bytes()
    update_bytes = len(whole) // ROUNDS
    for at in (0, 3 * update_bytes, 3 * update_bytes + 500):
        path.write_bytes(whole[:at] + b"\xff" * 8 + whole[at + 8 :])
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            pay_recorded_clients(workload, training.hosts, training.output_dir)
        assert "clients were not paid: updates.bin is damaged: update " in caplog.text
        assert not training.output_dir.ledger.exists()
    # A server that is killed writes its last update in part: its clients get nothing for it.
    path.write_bytes(whole[:-9])
    with caplog.at_level(logging.WARNING):
        pay_recorded_clients(workload, training.hosts, training.output_dir)
    assert "the updates of the last 1 rounds were not recorded" in caplog.text
    entries = [json.loads(line) for line in training.output_dir.ledger.read_text().splitlines()]
    assert len(entries) == 2 * WORLD * ROUNDS
    last = [each["tokens"] for each in entries if each["round"] == ROUNDS - 1]
    assert sum(map(abs, last)) == 2 * WORLD * 10, "the fees go back in equal parts"


def test_code_that_a_run_folder_names_is_not_executed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, train: Train
) -> None:
    training = train(describe_training("edge.trainer.1.1", "edge.trainer.1.2"), WORLD)
    workload = training.plans[0].workload.model_copy(update={"model": "os:abort"})
    with caplog.at_level(logging.WARNING):
        pay_recorded_clients(workload, training.hosts, training.output_dir, runs_code=False)
    assert "this needs the code" in caplog.text
    assert not training.output_dir.ledger.exists()
