"""Shape of a dataset's samples, found without a run."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from laggard.workloads.datasets import open_data, prepare_data
from laggard.workloads.specification.datasets import DataSettings, Synthetic


@dataclass(frozen=True)
class SampleShape:
    """Shape of one sample and number of classes; see `dataset.Data` for the attributes."""

    input_shape: tuple[int, ...]
    classes: int
    vocabulary: int | None = None


def find_sample_shape(settings: DataSettings) -> SampleShape:
    """Return the shape of a workload's samples.

    Raises:
        InputError: the dataset is missing, damaged or has the wrong form.
        PrerequisiteError: the dataset needs a package that is not installed.
    """
    spec = settings.dataset
    if isinstance(spec, Synthetic):
        # Its sizes are all in the file, and generating millions of samples takes minutes.
        if spec.kind == "tokens":
            return SampleShape((spec.length,), spec.classes, spec.vocabulary)
        return SampleShape((spec.channels, spec.size, spec.size), spec.classes)
    with tempfile.TemporaryDirectory(prefix="laggard-data-") as folder:
        prepare_data(settings, Path(folder))
        data = open_data(settings, Path(folder))
        return SampleShape(data.input_shape, data.classes, data.vocabulary)
