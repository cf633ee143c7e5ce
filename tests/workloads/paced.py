"""Models for trainings of several processes, most of whose steps take a given time at least and no core meanwhile: for `model: paced:NAME`."""

from __future__ import annotations

import math
import time

import torch
from torch import nn

from laggard.workloads.models import build_model

TURN_NS = 300_000_000
SEED = 1


class Paced(nn.Module):
    """An MLP that sleeps before each step; `slow` ranks sleep four times as long, each in its turn."""

    def __init__(self, input_shape: tuple[int, ...], classes: int, sleep_s: float, slow: bool) -> None:
        super().__init__()
        self.inner = build_model("mlp", input_shape, classes, SEED)
        self._sleep_s, self._slow = sleep_s, slow

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            rank = torch.initial_seed() - SEED * 1_000_003
            hindered = self._slow and rank > 0 and time.monotonic_ns() // TURN_NS % 3 == rank
            time.sleep(self._sleep_s * (4 if hindered else 1))
        logits: torch.Tensor = self.inner(inputs)
        return logits


def unhurried(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Leaves cores to the referee, who takes only what nobody else wants, where ranks never wait for each other."""
    return Paced(input_shape, classes, 0.003, slow=False)


def slow_in_turns(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """In turns nobody is slow, then rank 1, then rank 2."""
    return Paced(input_shape, classes, 0.02, slow=True)


def wide(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """No slower than an MLP, and of 154 kB: what is around messages does not count beside halves of it."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), 512), nn.ReLU(), nn.Linear(512, classes))
