"""Trainings whose workers have blocks of one model, over loopback."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from laggard.core.errors import InputError
from laggard.core.span_schema import Lane, Phase
from laggard.workloads.datasets import open_data
from laggard.workloads.models.model_state import load_state
from laggard.workloads.models.optimizers import build_optimizer
from laggard.workloads.output.worker_output import read_lines
from laggard.workloads.planning.placements import BlockPlacement, ModelPlan, ReplicaAverage
from laggard.workloads.planning.split_model import split_model
from laggard.workloads.planning.step_tasks import build_chain_tasks
from laggard.workloads.streams.plan_partition import plan_partition
from laggard.workloads.workload import Workload
from laggard.workloads.workload_model import build_workload_model

if TYPE_CHECKING:
    from pathlib import Path

    from tests.workloads.conftest import Train

BATCH, STEPS = 96, 30
HOSTS = [f"edge.trainer.1.{number}" for number in (1, 2, 3)]
SMALL: dict[str, object] = {
    "model": "cnn",
    "dataset": "digits",
    "batch_size": BATCH,
    "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
    "stop": {"steps": STEPS},
    "save_weights": True,
    "evaluate_every": 10 * BATCH,
    "seed": 7,
}


def build_plan(placements: list[BlockPlacement], micro_batches: int) -> dict[str, object]:
    """The content of a plan file for the small model."""
    workload = Workload.model_validate(SMALL)
    example = torch.zeros(2, 1, 8, 8)
    from laggard.workloads.models import build_model

    model = build_model(workload.model, (1, 8, 8), 10, workload.seed)
    sizes = split_model(model, example).list_sizes()
    assert len(sizes) == len(placements)
    plan = ModelPlan(tuple(placements), micro_batches)
    tasks = build_chain_tasks(plan, [size for _, size in sizes])
    return {
        "batch": BATCH,
        "micro_batches": micro_batches,
        "step_s": 1.0,
        "hosts": HOSTS,
        "blocks": [
            {
                "name": name,
                "parameter_bytes": size,
                "devices": {
                    HOSTS[device]: placement.samples[device] for device in placement.devices
                },
                "average": placement.average.value,
                "server": None if placement.server is None else HOSTS[placement.server],
            }
            for (name, size), placement in zip(sizes, placements, strict=True)
        ],
        "order": list(range(len(tasks.tasks))),
    }


def count_blocks() -> int:
    from laggard.workloads.models import build_model

    model = build_model("cnn", (1, 8, 8), 10, 7)
    return len(split_model(model, torch.zeros(2, 1, 8, 8)).blocks)


def spread() -> list[BlockPlacement]:
    """Replicas with a server, then replicas that all-reduce, then one device."""
    kinds = [
        BlockPlacement((48, 24, 24), ReplicaAverage.SERVER, 1),
        BlockPlacement((0, 60, 36), ReplicaAverage.ALL_REDUCE),
        BlockPlacement((0, 0, BATCH)),
    ]
    count = count_blocks()
    return [kinds[min(place * 3 // count, 2)] for place in range(count)]


def train_alone(folder: Path) -> torch.Tensor:
    """The parameters after the same steps in one process."""
    workload = Workload.model_validate(SMALL)
    data = open_data(workload, folder)
    model = build_workload_model(workload, data)
    optimizer = build_optimizer(workload.optimizer, model)
    partition = plan_partition(workload, data, 3, ["edge"] * 3)
    for step in range(STEPS):
        share = partition.pick(step, range(BATCH))
        batch = data.train.prepare(data.train.fetch(share.indices))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(batch.inputs), batch.labels).backward()
        optimizer.step()
    return torch.cat([each.detach().flatten() for each in model.parameters()])


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_blocks_on_three_workers_learn_as_one_process_does(
    train: Train, micro_batches: int
) -> None:
    strategy = {"name": "planned", "plan": build_plan(spread(), micro_batches)}
    training = train({**SMALL, "strategy": strategy}, 3)
    weights = load_state(training.output_dir.weights)["model"]
    model = build_workload_model(
        training.plans[0].workload,
        open_data(training.plans[0].workload, training.output_dir.folder),
    )
    model.load_state_dict(weights)
    found = torch.cat([each.detach().flatten() for each in model.parameters()])
    alone = train_alone(training.output_dir.folder)
    assert found.numpy() == pytest.approx(alone.numpy(), rel=1e-2, abs=2e-4)
    assert float(read_lines(training.output_dir.evaluations)[-1]["accuracy"] or 0) > 0.5
    steps = training.table("steps")
    # Only the worker with the last block knows losses.
    assert steps.groupby("rank").samples.sum().tolist() == [0, 0, BATCH * STEPS]
    spans = training.table("spans")
    main = spans[spans.lane == Lane.MAIN]
    assert {*main.phase} >= {each.value for each in (Phase.FORWARD, Phase.BACKWARD, Phase.COMM)}
    assert {*main[main.phase == Phase.FORWARD.value]["rank"]} == {0, 1, 2}


def test_a_plan_for_another_model_is_refused(train: Train) -> None:
    plan = json.loads(json.dumps(build_plan(spread(), 1)))
    plan["blocks"][0]["name"] = "another"
    training = train({**SMALL, "strategy": {"name": "planned", "plan": plan}}, 3, wait=False)
    statuses = training.forkery.wait(training.pids)
    assert statuses == [1, 1, 1]
    assert InputError.__name__ in training.logs()
    assert "not those of this one" in training.logs()
    assert np.isfinite(statuses[0] or 0)
