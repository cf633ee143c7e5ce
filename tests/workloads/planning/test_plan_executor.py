"""Trainings by plans over loopback, against the same training in one process."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from laggard.core.errors import InputError
from laggard.workloads.models import build_model
from laggard.workloads.planning.rank_program import build_rank_program
from laggard.workloads.planning.split_model import split_model
from tests.workloads.planning.plan_cases import (
    LR,
    MOMENTUM,
    SAMPLES,
    build_tasks,
    generate_samples,
    read_plan,
)
from tests.workloads.test_allreduce import run_case

if TYPE_CHECKING:
    from tests.workloads.conftest import Forkery

BATCH, STEPS = 24, 20
ALONE = [[24, 0, 0], "none", None], [[0, 24, 0], "none", None], [[0, 0, 24], "none", None]
REDUCED, SERVED = [[8, 8, 8], "all_reduce", None], [[3, 9, 12], "server", 1]
PAIR = [[0, 16, 8], "all_reduce", None]


def train_alone(model_name: str, blocks: int) -> tuple[list[float], list[list[object]]]:
    """The losses, and the parameters of each block, of the same training in one process."""
    inputs, labels = generate_samples()
    model = build_model(model_name, (1, 8, 8), 10, 3).double()
    divided = split_model(model, inputs[:4], most=blocks)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    losses = []
    for step in range(STEPS):
        rows = [(step * BATCH + row) % SAMPLES for row in range(BATCH)]
        loss = cross_entropy(model(inputs[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses, [[each.tolist() for each in block.parameters()] for block in divided.blocks]


def draw_order(placements: list[object], micro_batches: int, seed: int) -> list[int]:
    """A random order of the tasks, each after those that it waits for."""
    plan = read_plan({"placements": placements, "micro_batches": micro_batches})
    tasks, rng = build_tasks(plan).tasks, random.Random(seed)
    order: list[int] = []
    left = {*range(len(tasks))}
    while left:
        ready = sorted(each for each in left if not {*tasks[each].after} & left)
        order.append(rng.choice(ready))
        left.remove(order[-1])
    return order


@pytest.mark.parametrize(
    ("model", "placements", "micro_batches"),
    [
        ("mlp", [ALONE[0], ALONE[1]], 4),
        ("mlp", [REDUCED, SERVED], 1),
        ("cnn", [ALONE[2], REDUCED, ALONE[0]], 3),
        ("cnn", [SERVED, PAIR, ALONE[1]], 5),
        ("cnn", [REDUCED, REDUCED, SERVED], 2),
    ],
)
def test_a_plan_trains_as_one_process_does(
    forkery: Forkery, tmp_path: Path, model: str, placements: list[object], micro_batches: int
) -> None:
    order = draw_order(placements, micro_batches, seed=micro_batches)
    run_case(
        forkery,
        "train_by_plan",
        tmp_path,
        3,
        module="planning.plan_cases",
        model=model,
        placements=placements,
        micro_batches=micro_batches,
        order=order,
        steps=STEPS,
    )
    losses, parameters = train_alone(model, len(placements))
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    total = np.sum([each["losses"] for each in found], axis=0) / BATCH
    assert total == pytest.approx(losses, rel=1e-9)
    for each in found:
        for number, own in each["state"].items():
            for mine, known in zip(own, parameters[int(number)], strict=True):
                assert np.array(mine) == pytest.approx(np.array(known), rel=1e-7, abs=1e-10)


def test_an_order_that_is_none_is_refused() -> None:
    plan = read_plan({"placements": [ALONE[0], ALONE[1]], "micro_batches": 1})
    tasks = build_tasks(plan)
    usual = list(range(len(tasks.tasks)))
    assert build_rank_program(tasks, plan, usual, 0)
    for wrong in (usual[:-1], usual[::-1], [*usual[:-1], usual[0]]):
        with pytest.raises(InputError, match="make a new plan"):
            build_rank_program(tasks, plan, wrong, 0)
