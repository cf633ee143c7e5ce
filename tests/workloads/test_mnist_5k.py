"""The dataset `mnist_5k`: equal parts of every digit, which a small model can learn."""

from __future__ import annotations

import numpy as np
import pytest

from laggard.core.errors import PrerequisiteError
from laggard.workloads.datasets import mnist_5k, package_images


def test_both_parts_have_every_digit_equally_often() -> None:
    found = mnist_5k.load()
    assert np.bincount(found.train_labels).tolist() == [400] * 10
    assert np.bincount(found.test_labels).tolist() == [100] * 10
    assert found.train_inputs.shape == (4000, 1, 28, 28)
    images = np.concatenate([found.train_inputs, found.test_inputs]).reshape(5000, -1)
    assert images.min() == 0
    assert images.max() == 255
    # Images are in one part only, except for pairs that are equal in the original.
    assert len(np.unique(images, axis=0)) > 4990


def test_neighbours_of_the_class_means_are_right() -> None:
    found = mnist_5k.load()
    train = found.train_inputs.reshape(4000, -1).astype(float)
    test = found.test_inputs.reshape(1000, -1).astype(float)
    means = np.stack([train[found.train_labels == each].mean(axis=0) for each in range(10)])
    nearest = ((test[:, None] - means[None]) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == found.test_labels).mean() > 0.75


def test_a_package_that_is_missing_is_named() -> None:
    with pytest.raises(PrerequisiteError, match=r"mnist.*part of no_such_package") as raised:
        package_images.read_package_table("mnist", "no_such_package", ("x.csv.gz",))
    assert "pip install no_such_package" in str(raised.value)
