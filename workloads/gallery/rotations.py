"""Self-supervised learning: by how many quarter turns an image was rotated, without its label.

S. Gidaris, P. Singh, N. Komodakis, "Unsupervised representation learning by predicting image
rotations", ICLR 2018.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from laggard.workloads.datasets import digits

TURNS = 4

Images = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


def load(seed: int) -> tuple[Images, Labels, Images, Labels]:
    """Return every image of `digits` in all four rotations, in a random order.

    Args:
        seed: seed of the order.

    Returns:
        Training images [n, 1, 8, 8], their quarter turns [n], and the same of the test images.
    """
    arrays = digits.load()
    rng = np.random.default_rng(seed)
    return (*_rotate(arrays.train_inputs, rng), *_rotate(arrays.test_inputs, rng))


def _rotate(images: npt.NDArray[np.generic], rng: np.random.Generator) -> tuple[Images, Labels]:
    scaled = images.astype(np.float32) / max(float(images.max()), 1.0)
    turned = np.concatenate([np.rot90(scaled, turn, axes=(2, 3)) for turn in range(TURNS)])
    turns = np.repeat(np.arange(TURNS, dtype=np.int64), len(images))
    order = rng.permutation(len(turned))
    return np.ascontiguousarray(turned[order]), turns[order]
