"""Worker of `planned`: trains the blocks of the model that a plan gives to its rank.

All ranks build the whole model, of which each updates its own blocks. Before an evaluation, rank 0
gets the others' blocks.
"""

from __future__ import annotations

import math

import torch
import torch.distributed as dist

from laggard.core.rules.synchronization import SynchronizesEveryStep
from laggard.core.span_schema import Phase
from laggard.workloads.datasets.dataset import Batch
from laggard.workloads.datasets.partition import Partition, Share
from laggard.workloads.models.flat_state import FlatState
from laggard.workloads.planning.plan_file import PlanFile
from laggard.workloads.planning.split_model import split_model
from laggard.workloads.planning.step_tasks import build_chain_tasks
from laggard.workloads.strategies.base.strategy import TrainingContext
from laggard.workloads.strategies.pipeline.plan_executor import PlanExecutor
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
        assert context.example is not None
        self.model, self.optimizer = context.model, context.optimizer
        self._context = context
        divided = split_model(context.model, context.example)
        plan.require_model(divided.list_sizes())
        self._plan = plan.to_plan(context.hosts)
        tasks = build_chain_tasks(self._plan, [size for _, size in divided.list_sizes()])
        self._blocks = divided.blocks
        self._executor = PlanExecutor(
            divided.blocks,
            context.optimizer,
            self._plan,
            tasks,
            plan.order,
            context.rank,
            context.recorder,
            context.example,
        )
        first, last = (self._executor.list_rows(block) for block in (0, len(self._blocks) - 1))
        self._needed, self._judged = sorted({*first, *last}), len(last)

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

    def collect_model(self) -> None:
        """Give rank 0 the blocks of other ranks, for an evaluation."""
        self._context.recorder.enter(Phase.EVALUATE)
        for number, (block, placement) in enumerate(
            zip(self._blocks, self._plan.placements, strict=True)
        ):
            if placement.samples[0]:
                continue
            owner = placement.devices[0]
            flat = FlatState(block)
            if not flat.bytes:
                continue
            if self._context.rank == owner:
                dist.send(flat.read(), dst=0, tag=number)
            elif self._context.rank == 0:
                state = torch.empty_like(flat.read())
                dist.recv(state, src=owner, tag=number)
                flat.write(state)

    def measure_step_ns(self) -> float:
        """Return the CPU time of this rank's passes in a step, at full speed (see `Strategy`)."""
        return self._executor.measure_step_ns()
