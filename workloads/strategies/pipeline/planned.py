"""Worker of `planned`: trains the blocks of the model that a plan gives to its rank.

A rank has the numbers of its own blocks only, so that a model can be larger than the memory of any
host. Before an evaluation, rank 0 gets one block of the others after another, and writes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist

from laggard.core.rules.synchronization import SynchronizesEveryStep
from laggard.workloads.datasets.dataset import Batch
from laggard.workloads.datasets.partition import Partition, Share
from laggard.workloads.models.model_state import save_state
from laggard.workloads.planning.plan_file import PlanFile
from laggard.workloads.planning.split_model import split_model
from laggard.workloads.planning.step_tasks import build_chain_tasks
from laggard.workloads.strategies.base.strategy import DividedModel, TrainingContext
from laggard.workloads.strategies.pipeline.partial_model import PartialModel
from laggard.workloads.strategies.pipeline.plan_executor import PlanExecutor, find_shapes
from laggard.workloads.tracing.step_result import StepResult


class Planned(SynchronizesEveryStep):
    """One rank's side of a planned training.

    Args:
        plan: the plan.
        context: training context of the rank.

    Raises:
        InputError: the plan is for another model or other hosts.
    """

    def __init__(self, plan: PlanFile, context: TrainingContext) -> None:
        assert context.divided is not None
        self.model, self._context = context.model, context
        example = context.divided.example.to("meta")
        with torch.device("meta"):
            divided = split_model(context.model, example)
        plan.require_model(divided.list_sizes())
        self._plan, self._blocks = plan.to_plan(), divided.blocks
        self._ranks = plan.find_ranks(context.hosts)
        self._device = self._ranks.index(context.rank)
        self._partial = PartialModel(context.model, divided.blocks)
        shapes = find_shapes(divided.blocks, example)
        self.optimizer, optimizers = context.optimizer, self._load_blocks(context.divided)
        self._executor = PlanExecutor(
            divided.blocks,
            optimizers,
            self._plan,
            build_chain_tasks(self._plan, [size for _, size in divided.list_sizes()]),
            plan.order,
            self._device,
            self._ranks,
            context.recorder,
            shapes,
        )
        first, last = (self._executor.list_rows(block) for block in (0, len(self._blocks) - 1))
        self._needed, self._judged = sorted({*first, *last}), len(last)

    def _load_blocks(self, divided: DividedModel) -> Mapping[int, torch.optim.Optimizer]:
        """Load this rank's blocks, and build an optimizer of each that has parameters."""
        context, optimizers = self._context, {}
        for number, placement in enumerate(self._plan.placements):
            if placement.samples[self._device]:
                self._partial.load(number, divided.initial_model, context.device)
                if any(True for _ in self._blocks[number].parameters()):
                    optimizers[number] = divided.build_optimizer(self._blocks[number])
        return optimizers

    def pick_share(self, step: int, partition: Partition) -> Share:
        """Return the samples of a step that pass through the first or last block on this rank."""
        return partition.pick(step, self._needed)

    def step(self, step: int, batch: Batch, share: Share) -> StepResult:  # noqa: ARG002
        """Take this rank's part of a step (see `Strategy`)."""
        # The last batch of an epoch may be smaller than the plan's: its samples come again.
        rows = {row: place for place, row in enumerate(self._needed)}
        summed = self._executor.step(batch, rows)
        return StepResult(
            summed / self._judged if self._judged else math.nan,
            read_version=step,
            applied_version=step + 1,
            samples=self._judged,
        )

    def write_model(self, part: Callable[[int], Path]) -> None:
        """Give rank 0 one block of the others after another, which it writes (see `Strategy`)."""
        rank, writer = self._context.rank, self._ranks.index(0)
        for number, placement in enumerate(self._plan.placements):
            state = None
            if placement.samples[writer]:
                state = self._partial.read_state(number) if rank == 0 else None
            elif self._partial.count_bytes(number):
                state = self._pass_block(number, self._ranks[placement.devices[0]])
            if rank == 0:
                named = {} if state is None else self._partial.name_state(number, state)
                save_state(named, part(number))

    def _pass_block(self, number: int, owner: int) -> torch.Tensor | None:
        """Send the state of a block from its owner to rank 0, and return it there."""
        if self._context.rank == owner:
            dist.send(self._partial.read_state(number), dst=0, tag=number)
        elif self._context.rank == 0:
            state = torch.empty(self._partial.count_bytes(number), dtype=torch.uint8)
            dist.recv(state, src=owner, tag=number)
            return state
        return None

    def measure_step_ns(self) -> float:
        """Return the CPU time of this rank's passes in a step, at full speed (see `Strategy`)."""
        return self._executor.measure_step_ns()
