"""How the workers' updates become one model; one file and one class each."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn

from laggard.workloads.datasets.dataset import Batch
from laggard.workloads.partition import Share


class Strategy(Protocol):
    """One rank's side of a training strategy."""

    @property
    def model(self) -> nn.Module:
        """This rank's copy of the model."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """What updates it."""

    def step(self, batch: Batch, share: Share) -> float:
        """Learn from one batch.

        Args:
            batch: this rank's samples, padded to what the model needs.
            share: which of them count, and for how much.

        Returns:
            Mean loss over this rank's samples; NaN where it has none.
        """
