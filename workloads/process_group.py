"""Process group of the collectives, and the initial model that its ranks share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import torch
import torch.distributed as dist

from laggard.workloads.models.initial_model import read_model, write_model
from laggard.workloads.output.worker_output import WorkerOutputDir
from laggard.workloads.plan import WorkerPlan
from laggard.workloads.strategies.base.group_connections import connect_collectives
from laggard.workloads.strategies.base.strategy import TrainingContext


@contextmanager
def open_process_group(plan: WorkerPlan) -> Iterator[None]:
    """Join torch's process group for the body of a `with`."""
    dist.init_process_group(
        plan.backend,
        init_method=plan.init_method,
        rank=plan.rank,
        world_size=plan.world_size,
        timeout=timedelta(seconds=plan.timeout_s),
        # With a device NCCL connects here; without one it would connect in the first step.
        device_id=torch.device(plan.device) if plan.backend == "nccl" else None,
    )
    if plan.connects_lazily:
        connect_collectives(range(plan.world_size), plan.rank)
    yield
    # This runs only without an exception: it would wait for a peer that has died.
    dist.destroy_process_group()


def agree_on_model(
    plan: WorkerPlan, context: TrainingContext, output_dir: WorkerOutputDir
) -> TrainingContext:
    """Give this rank the model that rank 0 has built, through a file, not over the network."""
    if plan.rank == 0:
        write_model(output_dir.initial_model, context.model)
    else:
        read_model(output_dir.initial_model, context.model, plan.rank)
    return replace(context, same_model=True)
