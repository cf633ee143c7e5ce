"""Models for trainings of several processes, most of whose steps take a given time at least and no
core meanwhile: for `model: paced:NAME`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import nn

from laggard.workloads.models import build_model

TURN_NS = 300_000_000
SEED = 1


class Paced(nn.Module):
    """A model that sleeps before each step; if there are `slow` ranks they sleep four times as
    long: each in its turn, or one all along."""

    def __init__(
        self, inner: nn.Module, sleep_s: float, slow: Callable[[int], bool] = lambda _rank: False
    ) -> None:
        super().__init__()
        self.inner, self._sleep_s, self._slow = inner, sleep_s, slow

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            rank = torch.initial_seed() - SEED * 1_000_003
            time.sleep(self._sleep_s * (4 if self._slow(rank) else 1))
        logits: torch.Tensor = self.inner(inputs)
        return logits


def unhurried(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Leaves cores to the coordinator, which gives way to everybody else, where ranks never wait
    for each other."""
    return Paced(build_model("mlp", input_shape, classes, SEED), 0.003)


def slow_in_turns(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """In turns nobody is slow, then rank 1, then rank 2."""
    inner = build_model("mlp", input_shape, classes, SEED)
    return Paced(inner, 0.02, lambda rank: rank > 0 and time.monotonic_ns() // TURN_NS % 3 == rank)


def slow_third(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Rank 2 is slow all along."""
    return Paced(build_model("mlp", input_shape, classes, SEED), 0.005, lambda rank: rank == 2)


def wide(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """No slower than an MLP, and of 154 kB: what is around messages does not count beside halves of
    it."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(input_shape), 512), nn.ReLU(), nn.Linear(512, classes)
    )


def wide_unhurried(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """As both say."""
    return Paced(wide(input_shape, classes), 0.003)
