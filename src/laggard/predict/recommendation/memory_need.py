"""Memory that a worker needs for a step: parameters, gradients, the optimizer's state, activations.

Activations are what PyTorch keeps for the backward pass. They are counted in a forward pass of one
sample and of some more, and grow in proportion to the samples.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from laggard.workloads.workload import Workload

if TYPE_CHECKING:
    import torch
    from torch import nn

    from laggard.workloads.datasets.dataset import Batch

BASE_BYTES = 240 << 20
"""Memory of a worker before its model: the least that `check` accepts for a host."""

_SAMPLES = (8, 24)


@dataclass(frozen=True)
class MemoryNeed:
    """Memory of a worker.

    Attributes:
        fixed_bytes: memory that does not depend on the samples of a step.
        sample_bytes: memory of each sample of a step.
    """

    fixed_bytes: float
    sample_bytes: float

    def gib(self, samples: float) -> float:
        """Return the memory of a worker with so many samples a step."""
        return (self.fixed_bytes + self.sample_bytes * samples) / (1 << 30)


def measure_memory_need(workload: Workload) -> MemoryNeed:
    """Measure what a step of a workload keeps in memory.

    Args:
        workload: workload of a scenario, with the absolute path of its dataset's folder.

    Raises:
        InputError: the model or the data are invalid.
    """
    import torch

    from laggard.workloads.datasets import open_data, prepare_data
    from laggard.workloads.models import build_model
    from laggard.workloads.models.optimizers import build_optimizer
    from laggard.workloads.tracing.batch_loader import fewest_samples, pad_indices

    with (
        tempfile.TemporaryDirectory(prefix="laggard-recommend-") as folder,
        torch.random.fork_rng(devices=[]),
    ):
        prepare_data(workload, Path(folder))
        data = open_data(workload, Path(folder))
        model = build_model(
            workload.model, data.input_shape, data.classes, workload.seed, data.vocabulary
        )
        optimizer, fewest = build_optimizer(workload.optimizer, model), fewest_samples(model)
        few, many = (
            data.train.prepare(
                data.train.fetch(
                    pad_indices(np.arange(each, dtype=np.int64) % len(data.train), fewest)
                )
            )
            for each in _SAMPLES
        )
        kept = [_learn_and_count(model, optimizer, each) for each in (few, many)]
    parameters = sum(each.numel() * each.element_size() for each in model.parameters())
    state = sum(
        value.numel() * value.element_size()
        for own in optimizer.state.values()
        for value in own.values()
        if isinstance(value, torch.Tensor)
    )
    sample_bytes = max(kept[1] - kept[0], 0) / (len(many.labels) - len(few.labels))
    return MemoryNeed(BASE_BYTES + 2 * parameters + state, sample_bytes)


def _learn_and_count(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> int:
    """Train one step, and return the bytes that it keeps for the backward pass."""
    import torch
    from torch.nn.functional import cross_entropy

    kept: dict[int, int] = {}

    def count(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        loss = cross_entropy(model(batch.inputs), batch.labels)
        loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
    return sum(kept.values())
