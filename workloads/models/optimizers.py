"""The optimizers that `workload.yaml` can name."""

from __future__ import annotations

import torch
from torch import nn

from laggard.workloads.specification.training import OptimizerSpec

SGD_MOMENTUM = 0.9


def build_optimizer(spec: OptimizerSpec, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer that `workload.yaml` names, over all of a model's parameters, which are where
    they will be.
    """
    # On a GPU torch's own choice, one kernel for many tensors; on the processor it is one by one,
    # which torch need not find out each step.
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
