"""The dataset `digits`: 1797 real 8x8 images of handwritten digits.

The images come with scikit-learn (Alpaydin and Kaynak, UCI, 1998).
"""

from __future__ import annotations

import numpy as np

from laggard.workloads.datasets.arrays import Arrays
from laggard.workloads.datasets.package_images import read_package_table, split_images

TRAIN_SAMPLES = 1437
# Fixed, so that the test images do not depend on the workload's seed.
SPLIT_SEED = 0


def load() -> Arrays:
    """Load the images, shuffled once and split into 1437 training and 360 test images.

    They are shuffled because neighbors in the file were written by the same person.

    Raises:
        PrerequisiteError: scikit-learn is not installed.
    """
    rows = read_package_table("digits", "sklearn", ("datasets", "data", "digits.csv.gz"))
    rows = rows[np.random.default_rng(SPLIT_SEED).permutation(len(rows))]
    return split_images(rows, TRAIN_SAMPLES, side=8, brightest=16)
