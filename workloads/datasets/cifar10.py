"""CIFAR-10, binary version (Krizhevsky, 2009), in files mapped into memory.

A file consists of rows of one label byte and 3072 pixel bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from laggard.core.errors import InputError
from laggard.workloads.datasets.dataset import Batch, Data, Indices, Raw

SHAPE = (3, 32, 32)
ROW_BYTES = 3073
CLASSES = 10
# Mean and standard deviation of each color channel over the training images.
MEAN = (0.4914, 0.4822, 0.4465)
DEVIATION = (0.2470, 0.2435, 0.2616)

Rows = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class CifarSplit:
    """Rows of one or several files, in the order of the files' names."""

    files: tuple[Rows, ...]

    def __len__(self) -> int:
        return sum(len(rows) for rows in self.files)

    @property
    def labels(self) -> Indices:
        """Return the class of each sample."""
        return np.concatenate([rows[:, 0] for rows in self.files]).astype(np.int64)

    def fetch(self, indices: Indices) -> Raw:
        """Read rows from the mapped files."""
        rows = np.empty((len(indices), ROW_BYTES), dtype=np.uint8)
        first = 0
        for file in self.files:
            here = (indices >= first) & (indices < first + len(file))
            rows[here] = file[indices[here] - first]
            first += len(file)
        return Raw(rows[:, 1:], rows[:, 0].astype(np.int64), extra_bytes=len(rows))

    def prepare(self, raw: Raw) -> Batch:
        """Convert pixels to floats of mean 0 and standard deviation 1."""
        assert not isinstance(raw.inputs, tuple)
        images = (
            torch.from_numpy(np.ascontiguousarray(raw.inputs)).view(-1, *SHAPE).float().div_(255)
        )
        mean, deviation = (torch.tensor(value).view(3, 1, 1) for value in (MEAN, DEVIATION))
        return Batch(images.sub_(mean).div_(deviation), torch.from_numpy(raw.labels))


def load(folder: Path) -> Data:
    """Open the dataset in a folder with `data_batch_*.bin` and `test_batch.bin`.

    Raises:
        InputError: a file is missing, or does not consist of whole labeled images.
    """
    train, test = sorted(folder.glob("data_batch_*.bin")), sorted(folder.glob("test_batch.bin"))
    if not train or not test:
        raise InputError(
            f"{folder}: no CIFAR-10 here — the folder must contain data_batch_1.bin … and"
            " test_batch.bin from the binary version at https://www.cs.toronto.edu/~kriz/cifar.html"
        )
    return Data(CifarSplit(_map_file(train)), CifarSplit(_map_file(test)), SHAPE, CLASSES)


def _map_file(files: list[Path]) -> tuple[Rows, ...]:
    mapped = []
    for file in files:
        size = file.stat().st_size
        if size == 0 or size % ROW_BYTES:
            raise InputError(
                f"{file}: {size} bytes are not a whole number of rows of {ROW_BYTES} bytes —"
                " download the file again"
            )
        rows = np.memmap(file, dtype=np.uint8, mode="r").reshape(-1, ROW_BYTES)
        if rows[:, 0].max() >= CLASSES:
            raise InputError(
                f"{file}: it contains a label above {CLASSES - 1}, so it is not the binary version"
                " of CIFAR-10 — download that version"
            )
        mapped.append(rows)
    return tuple(mapped)
