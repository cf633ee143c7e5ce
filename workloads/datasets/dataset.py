"""Interface of a dataset: fetching samples, and preparing them as tensors.

Fetching is the work of storage (reading rows or files), and preparing is the work of the processor
(decoding, scaling). They are separate, so that the trace can distinguish a slow disk from a slow
core.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[np.generic]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Raw:
    """Fetched samples: rows of shape [n, ...] or the contents of n files, and n labels.

    Attributes:
        inputs: samples in their stored form.
        labels: labels of the samples.
        extra_bytes: bytes that were read from storage in addition to the inputs.
    """

    inputs: Array | tuple[bytes, ...]
    labels: Indices
    extra_bytes: int = 0

    @property
    def stored_bytes(self) -> int:
        """Return the number of bytes that were read from storage."""
        inputs = self.inputs
        read = sum(map(len, inputs)) if isinstance(inputs, tuple) else inputs.nbytes
        return read + self.extra_bytes

    @property
    def accesses(self) -> int:
        """Return the number of storage accesses: one per file, or one for all rows.

        Rows of one fetch count as contiguous.
        """
        return len(self.inputs) if isinstance(self.inputs, tuple) else 1


@dataclass(frozen=True)
class Batch:
    """Prepared samples: inputs [n, ...] and labels [n]."""

    inputs: torch.Tensor
    labels: torch.Tensor

    def to(self, device: torch.device) -> Batch:
        """Copy this batch to a device, and return when it is there."""
        return Batch(self.inputs.to(device), self.labels.to(device))


class Split(Protocol):
    """Training or test samples."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def fetch(self, indices: Indices) -> Raw:
        """Read samples; this is the part that storage costs."""

    def prepare(self, raw: Raw) -> Batch:
        """Convert samples to tensors; this is the part that the processor costs."""


@runtime_checkable
class CachedSplit(Split, Protocol):
    """Samples that the system caches when they are fetched."""

    def drop_from_cache(self, indices: Indices) -> None:
        """Have the next fetch read samples from their storage."""


@runtime_checkable
class LabeledSplit(Split, Protocol):
    """Samples whose labels are known without fetching them."""

    @property
    def labels(self) -> Indices:
        """Return the class of each sample, shape [n]."""


@dataclass(frozen=True)
class Data:
    """Dataset with training and test samples.

    Attributes:
        train: training samples.
        test: test samples.
        input_shape: shape of one sample: (channels, height, width), or (length,) for tokens.
        classes: number of classes; labels are 0 to classes - 1.
        vocabulary: number of different tokens; None for images.
    """

    train: Split
    test: Split
    input_shape: tuple[int, ...]
    classes: int
    vocabulary: int | None = None
