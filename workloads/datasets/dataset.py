"""Interface of a dataset: samples to fetch, and their preparation into tensors.

Fetching is what storage does (reading rows or files); preparing is what the processor does
(decoding, scaling). They are separate so that a slow disk and a slow core are told apart in the
trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[np.generic]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Raw:
    """Fetched samples: rows of shape [n, ...] or the content of n files, and n labels.

    Attributes:
        inputs: as they are stored.
        labels: of the samples.
        extra_bytes: what had to be read of storage besides the inputs.
    """

    inputs: Array | tuple[bytes, ...]
    labels: Indices
    extra_bytes: int = 0

    @property
    def stored_bytes(self) -> int:
        """What was read of storage: the bytes that these samples have there."""
        inputs = self.inputs
        read = sum(map(len, inputs)) if isinstance(inputs, tuple) else inputs.nbytes
        return read + self.extra_bytes

    @property
    def accesses(self) -> int:
        """How many times storage was turned to: once per file, or once for rows, which lie in one
        piece.
        """
        return len(self.inputs) if isinstance(self.inputs, tuple) else 1


@dataclass(frozen=True)
class Batch:
    """Prepared samples: inputs [n, ...] and labels [n]."""

    inputs: torch.Tensor
    labels: torch.Tensor

    def to(self, device: torch.device) -> Batch:
        """This batch on a device; it is there when this returns."""
        return Batch(self.inputs.to(device), self.labels.to(device))


class Split(Protocol):
    """The training or the test samples."""

    def __len__(self) -> int:
        """Number of samples."""

    def fetch(self, indices: Indices) -> Raw:
        """Read samples; what storage costs."""

    def prepare(self, raw: Raw) -> Batch:
        """Make tensors of them; what the processor costs."""


@dataclass(frozen=True)
class Data:
    """A dataset.

    Attributes:
        train: training samples.
        test: test samples.
        input_shape: of one sample: (channels, height, width), or (length,) of tokens.
        classes: number of classes; labels are 0 to classes - 1.
        vocabulary: number of different tokens; None for images.
    """

    train: Split
    test: Split
    input_shape: tuple[int, ...]
    classes: int
    vocabulary: int | None = None
