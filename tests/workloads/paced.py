"""Models for trainings of several processes, most of whose steps take a given time at least and no
core meanwhile: for `model: paced:NAME`."""

from __future__ import annotations

import math
import time

import torch
from torch import nn

from laggard.workloads.models import build_model

SEED = 1


class Paced(nn.Module):
    """A model that sleeps before each step."""

    def __init__(self, inner: nn.Module, sleep_s: float) -> None:
        super().__init__()
        self.inner, self._sleep_s = inner, sleep_s

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(self._sleep_s)
        logits: torch.Tensor = self.inner(inputs)
        return logits


def unhurried(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Leaves cores to the coordinator, which gives way to everybody else, where ranks never wait
    for each other."""
    return Paced(build_model("mlp", input_shape, classes, SEED), 0.003)


def wide(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """No slower than an MLP, and of 154 kB: what is around messages does not count beside halves of
    it."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(input_shape), 512), nn.ReLU(), nn.Linear(512, classes)
    )


def wide_unhurried(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """As both say."""
    return Paced(wide(input_shape, classes), 0.003)
