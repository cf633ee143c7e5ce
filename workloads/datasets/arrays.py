"""Splits whose samples are rows of an array, usually of a file that is mapped into memory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from laggard.core.errors import InputError
from laggard.workloads.datasets.dataset import Array, Batch, Data, Indices, Raw
from laggard.workloads.output.worker_output import write_whole

DESCRIPTION = "arrays.json"


@dataclass(frozen=True)
class ArraySplit:
    """Samples as rows [n, ...].

    Image values become floats as value * scale + shift; tokens stay integers.

    Attributes:
        inputs: samples, first axis n.
        labels: classes, shape [n].
        scale: factor for the values of images.
        shift: constant that is added to the scaled values.
        is_tokens: whether samples are token sequences.
    """

    inputs: Array
    labels: Indices
    scale: float = 1.0
    shift: float = 0.0
    is_tokens: bool = False

    def __len__(self) -> int:
        return len(self.labels)

    def fetch(self, indices: Indices) -> Raw:
        """Copy rows."""
        return Raw(self.inputs[indices], self.labels[indices])

    def prepare(self, raw: Raw) -> Batch:
        """Convert rows to floats or token numbers."""
        assert not isinstance(raw.inputs, tuple)
        rows = torch.from_numpy(raw.inputs)
        inputs = rows.long() if self.is_tokens else rows.float().mul_(self.scale).add_(self.shift)
        return Batch(inputs, torch.from_numpy(raw.labels))


@dataclass(frozen=True)
class Arrays:
    """Dataset that fits in memory, before it is saved for the workers.

    Attributes are as in `ArraySplit` and `Data`.
    """

    train_inputs: Array
    train_labels: Indices
    test_inputs: Array
    test_labels: Indices
    classes: int
    scale: float = 1.0
    shift: float = 0.0
    vocabulary: int | None = None


def save_arrays(arrays: Arrays, folder: Path) -> None:
    """Save a dataset so that `load_arrays` costs a worker almost nothing."""
    np.save(folder / "train_inputs.npy", np.ascontiguousarray(arrays.train_inputs))
    np.save(folder / "test_inputs.npy", np.ascontiguousarray(arrays.test_inputs))
    np.save(folder / "train_labels.npy", arrays.train_labels.astype(np.int64))
    np.save(folder / "test_labels.npy", arrays.test_labels.astype(np.int64))
    meaning = {
        "classes": arrays.classes,
        "scale": arrays.scale,
        "shift": arrays.shift,
        "vocabulary": arrays.vocabulary,
    }
    write_whole(folder / DESCRIPTION, json.dumps(meaning).encode())


def load_arrays(folder: Path) -> Data:
    """Open a saved dataset, with its samples mapped into memory."""
    meaning = json.loads((folder / DESCRIPTION).read_bytes())
    vocabulary = meaning["vocabulary"]

    def split(name: str) -> ArraySplit:
        inputs = np.load(folder / f"{name}_inputs.npy", mmap_mode="r")
        labels = np.load(folder / f"{name}_labels.npy")
        return ArraySplit(
            inputs, labels, meaning["scale"], meaning["shift"], vocabulary is not None
        )

    train = split("train")
    return Data(train, split("test"), train.inputs.shape[1:], meaning["classes"], vocabulary)


def check_arrays(arrays: Arrays, name: str) -> None:
    """Check that the arrays of a dataset fit together.

    Args:
        arrays: the dataset.
        name: name for messages.

    Raises:
        InputError: lengths, shapes or labels do not agree.
    """
    sets = (
        ("training", arrays.train_inputs, arrays.train_labels),
        ("test", arrays.test_inputs, arrays.test_labels),
    )
    for what, inputs, labels in sets:
        if len(inputs) != len(labels) or len(labels) == 0:
            raise InputError(
                f"{name}: {len(inputs)} {what} samples and {len(labels)} labels — the two numbers"
                " must be equal and at least 1"
            )
        if labels.min() < 0 or labels.max() >= arrays.classes:
            raise InputError(
                f"{name}: {what} labels must be whole numbers from 0 to {arrays.classes - 1}"
            )
    if arrays.train_inputs.shape[1:] != arrays.test_inputs.shape[1:]:
        raise InputError(
            f"{name}: training samples have the shape {arrays.train_inputs.shape[1:]} and test"
            f" samples {arrays.test_inputs.shape[1:]} — both must have the same shape"
        )
