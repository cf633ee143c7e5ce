"""Datasets that `workload.yaml` can name, prepared once per run and then opened by every worker.

Read `dataset.py` first (the interface), then `partition.py` (the samples of each rank and step). A
worker may have a twentieth of a core. Therefore `prepare_data` does all work that is needed only
once, in a process of its own. This package may import the core, `specification/` and `output/`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.core.errors import WorkerError
from laggard.workloads.output.worker_output import WorkerOutputDir, write_whole
from laggard.workloads.specification.datasets import (
    Cifar10,
    DataSettings,
    Digits,
    ImageFolder,
    Mnist5k,
    Synthetic,
)

if TYPE_CHECKING:
    from laggard.workloads.datasets.arrays import Arrays
    from laggard.workloads.datasets.dataset import Data

COMPLETE = "complete"
POLL_S = 0.01


def prepare_data(settings: DataSettings, output_dir: Path) -> None:
    """Read or generate the workload's dataset into the output folder, unless that is done.

    Raises:
        InputError: the dataset is damaged or has the wrong form.
        PrerequisiteError: the dataset needs a package that is not installed.
    """
    folder = WorkerOutputDir(output_dir).data
    if (folder / COMPLETE).exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(settings.dataset, ImageFolder):
        from laggard.workloads.datasets import image_folder

        image_folder.index(settings.dataset, settings.seed, folder)
        if settings.samples == "warm":
            image_folder.read_all(folder)
    elif (arrays := _create_arrays(settings)) is not None:
        from laggard.workloads.datasets.arrays import save_arrays

        save_arrays(arrays, folder)
    # Last, because workers open the dataset as soon as this file exists.
    write_whole(folder / COMPLETE, b"")


def open_data(settings: DataSettings, output_dir: Path, patience_s: float = 300.0) -> Data:
    """Wait until another process has prepared the dataset (`prepare_data`), and open it.

    Args:
        settings: settings of the workload.
        output_dir: folder that all processes of the training share.
        patience_s: longest wait, in real seconds.

    Raises:
        InputError: the dataset is damaged or has the wrong form.
        WorkerError: the dataset was not prepared within `patience_s`.
    """
    folder = WorkerOutputDir(output_dir).data
    deadline_s = time.monotonic() + patience_s
    while not (folder / COMPLETE).exists():
        if time.monotonic() > deadline_s:
            raise WorkerError(
                f"the dataset was not prepared within {patience_s:.0f} s: see its log",
                -1,
                "the evaluator",
            )
        time.sleep(POLL_S)
    if isinstance(settings.dataset, ImageFolder):
        from laggard.workloads.datasets import image_folder

        return image_folder.load(folder)
    if isinstance(settings.dataset, Cifar10):
        from laggard.workloads.datasets import cifar10

        return cifar10.load(Path(settings.dataset.folder))
    return _open_arrays(settings, folder)


def _open_arrays(settings: DataSettings, folder: Path) -> Data:
    from laggard.workloads.datasets.arrays import DESCRIPTION, load_arrays

    if (folder / DESCRIPTION).exists():
        return load_arrays(folder)
    from laggard.workloads.datasets import own
    from laggard.workloads.datasets.dataset import Data

    data = own.load(settings.dataset.name, settings.seed)
    assert isinstance(data, Data)
    return data


def _create_arrays(settings: DataSettings) -> Arrays | None:
    """Return the dataset as arrays to save; None if workers read the original themselves."""
    spec = settings.dataset
    if isinstance(spec, Digits):
        from laggard.workloads.datasets import digits

        return digits.load()
    if isinstance(spec, Mnist5k):
        from laggard.workloads.datasets import mnist_5k

        return mnist_5k.load()
    if isinstance(spec, Synthetic):
        from laggard.workloads.datasets import synthetic

        return synthetic.generate(spec, settings.seed)
    if isinstance(spec, Cifar10):
        from laggard.workloads.datasets import cifar10

        # Only checks the files: workers map them into memory themselves.
        cifar10.load(Path(spec.folder))
        return None
    from laggard.workloads.datasets import own
    from laggard.workloads.datasets.dataset import Data

    loaded = own.load(spec.name, settings.seed)
    return None if isinstance(loaded, Data) else loaded
