"""Generated data of any size that a model can learn, for measurements without files."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from laggard.workloads.datasets.arrays import Arrays
from laggard.workloads.specification.datasets import Synthetic

# Standard deviation of the noise, in pixel values from 0 to 255.
NOISE = 48.0
# Fraction of the tokens that is drawn from the class's own part of the vocabulary.
BIAS = 0.5


def generate(spec: Synthetic, seed: int) -> Arrays:
    """Generate a dataset of images or tokens.

    Images have one random pattern per class, under Gaussian noise. Half of the tokens of a
    sequence are drawn from its class's own part of the vocabulary.

    Args:
        spec: sizes of the dataset.
        seed: seed of all random numbers.
    """
    random = np.random.default_rng((seed, 0xDA7A))
    labels = random.integers(0, spec.classes, spec.train + spec.test)
    inputs = (
        _generate_images(spec, labels, random)
        if spec.kind == "images"
        else _generate_tokens(spec, labels, random)
    )
    is_tokens = spec.kind == "tokens"
    return Arrays(
        train_inputs=inputs[: spec.train],
        train_labels=labels[: spec.train],
        test_inputs=inputs[spec.train :],
        test_labels=labels[spec.train :],
        classes=spec.classes,
        scale=1.0 if is_tokens else 1 / 64,
        shift=0.0 if is_tokens else -2.0,
        vocabulary=spec.vocabulary if is_tokens else None,
    )


def _generate_images(
    spec: Synthetic, labels: npt.NDArray[np.int64], random: np.random.Generator
) -> npt.NDArray[np.uint8]:
    shape = (spec.channels, spec.size, spec.size)
    patterns = random.uniform(64, 192, (spec.classes, *shape)).astype(np.float32)
    images = np.empty((len(labels), *shape), dtype=np.uint8)
    # In parts, because the noise of all images at once needs four times the memory of the images.
    for start in range(0, len(labels), 1024):
        part = labels[start : start + 1024]
        noise = random.standard_normal((len(part), *shape), dtype=np.float32) * NOISE
        images[start : start + 1024] = np.clip(patterns[part] + noise, 0, 255)
    return images


def _generate_tokens(
    spec: Synthetic, labels: npt.NDArray[np.int64], random: np.random.Generator
) -> npt.NDArray[np.int32]:
    shape = (len(labels), spec.length)
    anywhere = random.integers(0, spec.vocabulary, shape)
    width = max(1, spec.vocabulary // spec.classes)
    own = (labels[:, None] * width + random.integers(0, width, shape)) % spec.vocabulary
    return np.where(random.random(shape) < BIAS, own, anywhere).astype(np.int32)
