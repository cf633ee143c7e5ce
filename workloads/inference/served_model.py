"""A network that a node serves: its blocks, their seconds, and the bytes between them."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from laggard.core.serving.served_network import ServedNetwork
from laggard.workloads.datasets.dataset import Batch, Data
from laggard.workloads.inference.cut_model import CutModel, Tensors, cut_model
from laggard.workloads.inference_workload import InferenceWorkload
from laggard.workloads.models import build_model
from laggard.workloads.models.optimizers import build_optimizer
from laggard.workloads.specification.training import OptimizerSpec

_WARM_UP, _REPEATS = 2, 7
_TRAINING_BATCH = 32
_FLOAT_BYTES = 4


Shapes = tuple[torch.Size, ...]


@dataclass(frozen=True)
class ServedModel:
    """Network in blocks.

    Attributes:
        name: its name.
        model: its blocks.
        shapes: shapes of the tensors that enter every block, for the samples of one request.
        cut_bytes: bytes of these tensors.
        block_s: seconds of every block on a whole core of this machine.
        classes: number of outputs.
    """

    name: str
    model: CutModel
    shapes: tuple[Shapes, ...]
    cut_bytes: tuple[float, ...]
    block_s: tuple[float, ...]
    classes: int

    @property
    def blocks(self) -> int:
        """Return the number of blocks."""
        return len(self.block_s)

    def describe(self, device_share: float, server_share: float | None) -> ServedNetwork:
        """Return the network at a device and a server with these shares of a core."""
        samples = self.shapes[0][0][0]
        return ServedNetwork(
            self.name,
            tuple(each / device_share for each in self.block_s),
            () if server_share is None else tuple(each / server_share for each in self.block_s),
            self.cut_bytes,
            float(samples * self.classes * _FLOAT_BYTES),
        )

    def predict(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the output of all blocks, [n, classes]."""
        values: Tensors = (inputs,)
        with torch.inference_mode():
            for number in range(self.blocks):
                values = self.model.compute(number, values)
        return values[0]

    def pack(self, values: Tensors) -> torch.Tensor:
        """Return the tensors that pass at a cut as one of one dimension."""
        return torch.cat([each.reshape(-1) for each in values])

    def unpack(self, packed: torch.Tensor, cut: int) -> Tensors:
        """Return the tensors that pass at a cut."""
        shapes = self.shapes[cut]
        parts = torch.split(packed, [each.numel() for each in shapes])
        return tuple(part.view(shape) for part, shape in zip(parts, shapes, strict=True))


def build_served_models(
    workload: InferenceWorkload, data: Data, seed: int, shares: tuple[float, float]
) -> tuple[ServedModel, ...]:
    """Build networks, train them a little, divide them and measure their blocks.

    Args:
        workload: names of the models, number of samples of a request, and of training steps, each
            on 32 samples drawn from the seed.
        data: dataset.
        seed: seed of the weights and of the samples.
        shares: typical share of a core of a device, and the share of the server.

    Raises:
        InputError: a model cannot process the data, or does not return one tensor.
    """
    names, samples = workload.models, workload.requests.batch
    chains = []
    for name in names:
        model = build_model(name, data.input_shape, data.classes, seed, data.vocabulary)
        _train(model, data, workload.train_steps, seed)
        model.eval()
        chains.append(cut_model(model, fetch(data, np.arange(2)).inputs, *shares))
    sample = fetch(data, np.zeros(samples, dtype=np.int64)).inputs
    passes = [[_time_pass(chain, sample) for chain in chains] for _ in range(_WARM_UP + _REPEATS)]
    return tuple(
        ServedModel(
            name,
            chain,
            passes[0][number].shapes,
            passes[0][number].cut_bytes,
            tuple(np.median([each[number].seconds for each in passes[_WARM_UP:]], axis=0).tolist()),
            data.classes,
        )
        for number, (name, chain) in enumerate(zip(names, chains, strict=True))
    )


def fetch(data: Data, indices: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Batch:
    """Return test samples as tensors."""
    return data.test.prepare(data.test.fetch(indices))


def _train(model: nn.Module, data: Data, steps: int, seed: int) -> None:
    """Train on samples that are drawn with replacement, so that every seed has others (bagging)."""
    rng = np.random.default_rng((seed, 3))
    own = rng.integers(len(data.train), size=len(data.train))
    optimizer = build_optimizer(OptimizerSpec(), model)
    model.train()
    for _ in range(steps):
        batch = data.train.prepare(data.train.fetch(rng.choice(own, _TRAINING_BATCH)))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch.inputs), batch.labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


@dataclass(frozen=True)
class _BlockPass:
    """Pass of samples through all blocks: what enters each of them, and its seconds."""

    shapes: tuple[Shapes, ...]
    cut_bytes: tuple[float, ...]
    seconds: tuple[float, ...]


def _time_pass(chain: CutModel, sample: torch.Tensor) -> _BlockPass:
    """Measure a pass through all blocks.

    Passes through all networks come in turn, so that no block finds its own numbers in the caches
    any more than when requests come in turn.
    """
    shapes, sizes, seconds = [], [], []
    values: Tensors = (sample,)
    with torch.inference_mode():
        for number in range(len(chain.blocks)):
            shapes.append(tuple(each.shape for each in values))
            sizes.append(float(sum(each.nbytes for each in values)))
            begun_s = time.thread_time()
            values = chain.compute(number, values)
            seconds.append(time.thread_time() - begun_s)
    return _BlockPass(tuple(shapes), tuple(sizes), tuple(seconds))
