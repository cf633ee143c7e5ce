"""Images that ship with Python packages, as tables of pixels and labels."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import numpy as np
import numpy.typing as npt

from laggard.core.errors import PrerequisiteError
from laggard.workloads.datasets.arrays import Arrays

Table = npt.NDArray[np.int64]


def read_package_table(dataset: str, package: str, parts: tuple[str, ...]) -> Table:
    """Read a compressed table of whole numbers that is part of a package.

    The package is not imported, because that would delay the start of every run by a second.

    Args:
        dataset: name of the dataset, for messages.
        package: name of the package, as it is imported.
        parts: path of the file in the package.

    Returns:
        The numbers, one row per line.

    Raises:
        PrerequisiteError: the package is not installed.
    """
    text = gzip.decompress(_find_file(dataset, package, parts).read_bytes()).decode()
    return np.loadtxt(text.splitlines(), delimiter=",", dtype=np.int64)


def split_images(rows: Table, train_samples: int, side: int, brightest: int) -> Arrays:
    """Return the images of a table, the first ones for training and the others for tests.

    Args:
        rows: pixels and label of each image of one of ten classes, [N, side * side + 1].
        train_samples: number of images for training.
        side: height and width of an image.
        brightest: largest value of a pixel; values from 0 to this one become -1 to 1.
    """
    images = rows[:, :-1].astype(np.uint8).reshape(-1, 1, side, side)
    labels = rows[:, -1]
    return Arrays(
        train_inputs=images[:train_samples],
        train_labels=labels[:train_samples],
        test_inputs=images[train_samples:],
        test_labels=labels[train_samples:],
        classes=10,
        scale=2 / brightest,
        shift=-1.0,
    )


def _find_file(dataset: str, package: str, parts: tuple[str, ...]) -> Path:
    found = importlib.util.find_spec(package)
    places = found.submodule_search_locations if found is not None else None
    for place in places or ():
        file = Path(place).joinpath(*parts)
        if file.exists():
            return file
    name = {"sklearn": "scikit-learn"}.get(package, package)
    raise PrerequisiteError(
        f"dataset {dataset}: it is part of {name}, which is not installed", f"pip install {name}"
    )
