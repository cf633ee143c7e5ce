"""The blocks of a model, and the seconds of their passes and updates on a core, measured."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from laggard.workloads.datasets.dataset import Batch
from laggard.workloads.output.worker_output import WorkerOutputDir
from laggard.workloads.planning.placements import BlockPlacement, ModelPlan
from laggard.workloads.planning.planning_problem import AffineSeconds, BlockEdge, ModelBlock
from laggard.workloads.planning.rank_program import Instruction
from laggard.workloads.planning.split_model import SplitModel
from laggard.workloads.planning.step_tasks import StepTaskKind, build_chain_tasks
from laggard.workloads.strategies.pipeline.plan_executor import PlanExecutor
from laggard.workloads.tracing.recorder import Recorder

_REPEATS, _WARM_UP = 5, 2
_Times = Mapping[tuple[StepTaskKind, int], float]
"""Seconds by kind of task and number of the block."""


@dataclass(frozen=True)
class ModelProfile:
    """Blocks of a model with their seconds on a whole core of this machine.

    Attributes:
        blocks: the blocks.
        edges: outputs between them.
        forward: seconds of a forward pass through each block.
        backward: seconds of a backward pass through each block.
    """

    blocks: tuple[ModelBlock, ...]
    edges: tuple[BlockEdge, ...]
    forward: tuple[AffineSeconds, ...]
    backward: tuple[AffineSeconds, ...]


def profile_blocks(
    model: SplitModel,
    inputs: torch.Tensor,
    build_optimizer: Callable[[nn.Module], torch.optim.Optimizer],
    folder: Path,
) -> ModelProfile:
    """Measure a step of all blocks on a core, with all samples and with a quarter of them.

    The step is one of `planned`, so its times have everything that a rank does in a task.

    Args:
        model: the blocks; they are trained a little.
        inputs: a batch of at least eight samples, [n, ...].
        build_optimizer: function that builds the optimizer of a module.
        folder: empty folder for the trace.
    """
    saved_bytes, shapes = _count_saved(model, inputs)
    few, many = max(len(inputs) // 4, 2), len(inputs)
    optimizers = {
        number: build_optimizer(block)
        for number, block in enumerate(model.blocks)
        if any(True for _ in block.parameters())
    }
    with Recorder(WorkerOutputDir(folder), 0, 1) as recorder:
        few_s, many_s = (
            _time_tasks(model, shapes, inputs[:count], optimizers, recorder)
            for count in (few, many)
        )
    numbers = range(len(model.blocks))

    def fit(kind: StepTaskKind) -> tuple[AffineSeconds, ...]:
        return tuple(_fit(few, few_s[kind, each], many, many_s[kind, each]) for each in numbers)

    return ModelProfile(
        tuple(
            ModelBlock(
                name,
                size_bytes,
                saved_bytes[number] / many,
                update_s=many_s.get((StepTaskKind.UPDATE, number), 0.0),
            )
            for number, (name, size_bytes) in enumerate(model.list_sizes())
        ),
        tuple(BlockEdge(each, each + 1, shapes[each + 1].nbytes / many) for each in numbers[:-1]),
        fit(StepTaskKind.FORWARD),
        fit(StepTaskKind.BACKWARD),
    )


class _TimedExecutor(PlanExecutor):
    """Executor that measures the CPU time of each task."""

    times_s: dict[tuple[StepTaskKind, int], list[float]]

    def _execute(self, instruction: Instruction, batch: Batch, rows: Mapping[int, int]) -> None:
        begun_s = time.thread_time()
        super()._execute(instruction, batch, rows)
        task = instruction.task
        if task.micro_batch != 0:
            self.times_s[task.kind, task.block].append(time.thread_time() - begun_s)


def _time_tasks(
    model: SplitModel,
    shapes: list[torch.Tensor],
    inputs: torch.Tensor,
    optimizers: Mapping[int, torch.optim.Optimizer],
    recorder: Recorder,
) -> _Times:
    """Return the shortest seconds of each task of a step on one device.

    The step has two micro-batches of all samples, of which the second one counts: its gradients are
    added to those of the first.
    """
    count = len(inputs)
    plan = ModelPlan((BlockPlacement((2 * count,)),) * len(model.blocks), micro_batches=2)
    tasks = build_chain_tasks(plan, [size for _, size in model.list_sizes()])
    executor = _TimedExecutor(
        model.blocks, optimizers, plan, tasks, range(len(tasks.tasks)), 0, (0,), recorder, shapes
    )
    executor.times_s = defaultdict(list)
    batch = Batch(inputs, torch.zeros(count, dtype=torch.int64))
    rows = {row: row % count for row in range(2 * count)}
    for step in range(_WARM_UP + _REPEATS):
        recorder.begin_step(step)
        executor.step(batch, rows)
    return {task: min(seconds[_WARM_UP:]) for task, seconds in executor.times_s.items()}


def _count_saved(model: SplitModel, inputs: torch.Tensor) -> tuple[list[float], list[torch.Tensor]]:
    """Return the bytes that each backward pass needs of its forward pass, and all shapes."""
    saved_bytes, values, shapes = [], inputs, [inputs.to("meta")]
    for module in model.blocks:
        sizes: dict[int, int] = {}
        parameters = {each.untyped_storage().data_ptr() for each in module.parameters()}

        def pack(
            tensor: torch.Tensor,
            sizes: dict[int, int] = sizes,
            parameters: set[int] = parameters,
        ) -> torch.Tensor:
            place = tensor.untyped_storage().data_ptr()
            if place not in parameters:
                sizes[place] = tensor.untyped_storage().nbytes()
            return tensor

        entered = values.detach().clone()
        if entered.is_floating_point():
            entered.requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            values = module(entered).detach()
        # The input is what the block before has put out: it stays for that one's backward pass.
        saved_bytes.append(float(sum(sizes.values())))
        shapes.append(values.to("meta"))
    return saved_bytes, shapes


def _fit(few: int, few_s: float, many: int, many_s: float) -> AffineSeconds:
    """Return the line through two sizes, of which no part is negative."""
    if many == few:
        return AffineSeconds(0.0, many_s / many)
    sample_s = min(max((many_s - few_s) / (many - few), 0.0), many_s / many)
    return AffineSeconds(max(many_s - many * sample_s, 0.0), sample_s)
