"""Models for trainings of several processes, most of whose steps take a given time at least and no
core meanwhile: for `model: paced:NAME`."""

from __future__ import annotations

import math
import os
import tempfile
import time
from pathlib import Path

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


def name_hold(pid: int) -> Path:
    """File that holds the steps of a process, for a model of `held`, while it exists."""
    return Path(tempfile.gettempdir(), f"hold-{pid}")


def name_held(pid: int) -> Path:
    """File that says that a process is held in a step."""
    return Path(tempfile.gettempdir(), f"held-{pid}")


class Held(nn.Module):
    """A model whose steps wait while a file exists; what else its process does goes on."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        while self.training and name_hold(os.getpid()).exists():
            name_held(os.getpid()).touch()
            time.sleep(0.002)
        logits: torch.Tensor = self.inner(inputs)
        return logits


def held(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A model that can be held."""
    return Held(build_model("mlp", input_shape, classes, SEED))


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


class NoNumber(nn.Module):
    """A model whose outputs are no numbers."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.inner(inputs)
        return logits * math.nan


def no_number(shape: tuple[int, ...], classes: int) -> nn.Module:
    return NoNumber(build_model("mlp", shape, classes, SEED))
