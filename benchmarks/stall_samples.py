"""Model and dataset of `benchmarks/stalls.py`: `stall_samples:build` and `stall_samples:load`.

The model computes much and sends little, so that no message is longer than what TCP sends at once
after a pause. The preparation of a batch takes a known time.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from torch import nn

from laggard.workloads.datasets import synthetic
from laggard.workloads.datasets.arrays import ArraySplit
from laggard.workloads.datasets.dataset import Batch, Data, Indices, Raw
from laggard.workloads.specification.datasets import Synthetic

PREP_VARIABLE = "STALL_SAMPLES_PREP_S"
"""Variable of the environment with the seconds that a batch takes to prepare."""


def build(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build two convolutions whose outputs are averaged: 5,418 parameters for images of 3 colors."""
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, classes),
    )


@dataclass(frozen=True)
class SlowlyPreparedSplit:
    """Samples whose preparation takes `prep_s` in all, and their fetching no more than memory."""

    rows: ArraySplit
    prep_s: float

    def __len__(self) -> int:
        return len(self.rows)

    def fetch(self, indices: Indices) -> Raw:
        """Copy rows."""
        return self.rows.fetch(indices)

    def prepare(self, raw: Raw) -> Batch:
        """Convert rows, and wait for the rest of the time."""
        until_s = time.monotonic() + self.prep_s
        batch = self.rows.prepare(raw)
        time.sleep(max(0.0, until_s - time.monotonic()))
        return batch


def load(seed: int) -> Data:
    """Generate images of 32 x 32 pixels."""
    arrays = synthetic.generate(Synthetic(name="synthetic", size=32), seed)
    prep_s = float(os.environ.get(PREP_VARIABLE, "0"))
    train = ArraySplit(arrays.train_inputs, arrays.train_labels, arrays.scale, arrays.shift)
    test = ArraySplit(arrays.test_inputs, arrays.test_labels, arrays.scale, arrays.shift)
    return Data(
        SlowlyPreparedSplit(train, prep_s),
        test,
        arrays.train_inputs.shape[1:],
        arrays.classes,
    )
