"""Division of the batches among ranks in lockstep, by their speeds or by what their hosts hold."""

from __future__ import annotations

import numpy as np
import torch.distributed as dist

from laggard.workloads.balancing.balancer import (
    Balancer,
    BatchSharing,
    SupportsAllGather,
    gather_by_collective,
)
from laggard.workloads.balancing.parameters import BalancedBatches
from laggard.workloads.balancing.shares import Shares
from laggard.workloads.datasets.partition import Partition
from laggard.workloads.migration.held_samples import HeldSamplesOrder
from laggard.workloads.migration.migrator import Migrator, TrainingSize
from laggard.workloads.migration.sample_mover import MigratedSplit, SampleMover
from laggard.workloads.plan import WorkerPlan
from laggard.workloads.strategies.base.parameters import BalancedParameters
from laggard.workloads.strategies.base.strategy import Strategy, TrainingContext
from laggard.workloads.tracing.batch_loader import BatchLoader, fewest_samples


def find_balancing(plan: WorkerPlan) -> BalancedBatches | None:
    """Return the parameters of balancing; None if the strategy does not balance batches."""
    parameters = plan.workload.strategy
    return parameters.balanced_batches if isinstance(parameters, BalancedParameters) else None


def create_batch_sharing(
    plan: WorkerPlan,
    loader: BatchLoader,
    partition: Partition,
    strategy: Strategy,
    context: TrainingContext,
) -> BatchSharing | None:
    """Create what divides the batches; None for even shares. All ranks do so before they train.

    Args:
        plan: plan of the worker.
        loader: loader of its samples.
        partition: assignment of samples to steps.
        strategy: strategy of the rank.
        context: model and settings of the rank.
    """
    if plan.workload.held_samples is not None:
        return _create_migrator(plan, loader, partition, context)
    balancing = find_balancing(plan)
    if balancing is None:
        return None
    shares = Shares(partition, fewest_samples(context.model))
    all_gather = strategy.all_gather if isinstance(strategy, SupportsAllGather) else None
    return Balancer(balancing, context, shares, all_gather)


def _create_migrator(
    plan: WorkerPlan, loader: BatchLoader, partition: Partition, context: TrainingContext
) -> Migrator:
    settings = plan.workload.held_samples
    assert settings is not None
    assert isinstance(loader.train, MigratedSplit)
    mover = None
    if settings.migrate:
        group = dist.new_group(backend="gloo")
        assert group is not None
        mover = SampleMover(loader.train, plan.rank, group, context.recorder)
    model_bytes = sum(each.numel() * each.element_size() for each in context.model.parameters())
    size = TrainingSize(
        fewest_samples(context.model),
        loader.train.fetch(np.zeros(1, dtype=np.int64)).stored_bytes,
        2 * model_bytes * (plan.world_size - 1) // plan.world_size,
        plan.workload.stop,
    )
    return Migrator(
        settings,
        context,
        HeldSamplesOrder(partition),
        mover,
        size,
        gather_by_collective(context),
    )
