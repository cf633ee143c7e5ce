"""Optimizers that `workload.yaml` can name."""

from __future__ import annotations

import torch
from torch import nn

from laggard.workloads.specification.training import OptimizerSpec

SGD_MOMENTUM = 0.9


def build_optimizer(spec: OptimizerSpec, model: nn.Module) -> torch.optim.Optimizer:
    """Build the optimizer of `workload.yaml` over all parameters of a model.

    The parameters must be on their final device.
    """
    # On a GPU, None lets torch choose, and it uses one kernel for many tensors. On the processor it
    # would choose one tensor at a time; False saves the search in each step.
    foreach = None if any(parameter.is_cuda for parameter in model.parameters()) else False
    if spec.name == "sgd":
        momentum = SGD_MOMENTUM if spec.momentum is None else spec.momentum
        return torch.optim.SGD(
            model.parameters(),
            lr=spec.lr,
            momentum=momentum,
            weight_decay=spec.weight_decay,
            foreach=foreach,
        )
    kind = torch.optim.Adam if spec.name == "adam" else torch.optim.AdamW
    return kind(model.parameters(), lr=spec.lr, weight_decay=spec.weight_decay, foreach=foreach)
