"""What the ranks of the tests of plan executors do; loaded by forkery.py."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from laggard.workloads.datasets.dataset import Batch
from laggard.workloads.models import build_model
from laggard.workloads.models.initial_model import write_model
from laggard.workloads.output.worker_output import WorkerOutputDir
from laggard.workloads.planning.placements import BlockPlacement, ModelPlan, ReplicaAverage
from laggard.workloads.planning.split_model import split_model
from laggard.workloads.planning.step_tasks import StepTasks, build_chain_tasks
from laggard.workloads.strategies.pipeline.partial_model import PartialModel
from laggard.workloads.strategies.pipeline.plan_executor import PlanExecutor, find_shapes
from laggard.workloads.tracing.recorder import Recorder

SAMPLES, LR, MOMENTUM = 64, 0.1, 0.9
RANKS = (2, 0, 1)
"""Rank of each device: workers need not be placed in the order of the plan."""


def generate_samples() -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(5)
    inputs = torch.randn(SAMPLES, 1, 8, 8, generator=random, dtype=torch.float64)
    return inputs, torch.randint(0, 10, (SAMPLES,), generator=random)


def build_tasks(plan: ModelPlan) -> StepTasks:
    """Tasks of a chain of blocks, all of which have parameters."""
    return build_chain_tasks(plan, [1.0] * len(plan.placements))


def read_plan(case: dict[str, Any]) -> ModelPlan:
    placements = tuple(
        BlockPlacement(tuple(samples), ReplicaAverage(average), server)
        for samples, average, server in case["placements"]
    )
    return ModelPlan(placements, case["micro_batches"])


def train_by_plan(argument: str) -> None:
    """Train in float64 by a plan; save the losses and the own blocks' parameters."""
    case = json.loads(argument)
    folder, rank = Path(case["folder"]), case["rank"]
    device = RANKS.index(rank)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=case["world_size"]
    )
    inputs, labels = generate_samples()
    model = build_model(case["model"], (1, 8, 8), 10, 3).double()
    write_model(folder / f"initial-{rank}", model)
    plan, model, example = read_plan(case), model.to("meta"), inputs[:4].to("meta")
    with torch.device("meta"):
        divided = split_model(model, example, most=len(plan.placements))
    assert len(divided.blocks) == len(plan.placements)
    partial, shapes = PartialModel(model, divided.blocks), find_shapes(divided.blocks, example)
    own = [number for number, each in enumerate(plan.placements) if each.samples[device]]
    for number in own:
        partial.load(number, folder / f"initial-{rank}", torch.device("cpu"))
    optimizers = {
        number: torch.optim.SGD(divided.blocks[number].parameters(), lr=LR, momentum=MOMENTUM)
        for number in own
    }
    tasks, batch = build_tasks(plan), sum(plan.placements[0].samples)
    with Recorder(WorkerOutputDir(folder), rank, case["world_size"]) as recorder:
        executor = PlanExecutor(
            divided.blocks, optimizers, plan, tasks, case["order"], device, RANKS, recorder, shapes
        )
        needed = sorted({*executor.list_rows(0), *executor.list_rows(len(divided.blocks) - 1)})
        rows, losses = {row: place for place, row in enumerate(needed)}, []
        for step in range(case["steps"]):
            recorder.begin_step(step)
            places = [(step * batch + row) % SAMPLES for row in needed]
            losses.append(executor.step(Batch(inputs[places], labels[places]), rows))
    state = {
        number: [each.tolist() for each in block.parameters()]
        for number, block in enumerate(divided.blocks)
        if plan.placements[number].samples[device]
    }
    (folder / f"{rank}.json").write_text(json.dumps({"losses": losses, "state": state}))
    dist.destroy_process_group()
