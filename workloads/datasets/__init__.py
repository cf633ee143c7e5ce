"""The datasets that `workload.yaml` can name, prepared once per run and then opened by every
worker.

A worker may have a twentieth of a core, so whatever can be done once is done by `prepare_data`, in
a process of its own.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.core.errors import WorkerError
from laggard.workloads.output.worker_output import WorkerOutputDir, write_whole
from laggard.workloads.workload import Cifar10, Digits, ImageFolder, Synthetic, Workload

if TYPE_CHECKING:
    from laggard.workloads.datasets.arrays import Arrays
    from laggard.workloads.datasets.dataset import Data

COMPLETE = "complete"
POLL_S = 0.01


def prepare_data(workload: Workload, output_dir: Path) -> None:
    """Read or generate the workload's dataset into the spool, unless that is done already.

    Raises:
        InputError: the dataset is not what it should be.
        PrerequisiteError: it needs something that is not installed.
    """
    folder = WorkerOutputDir(output_dir).data
    if (folder / COMPLETE).exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(workload.dataset, ImageFolder):
        from laggard.workloads.datasets import image_folder

        image_folder.index(workload.dataset, workload.seed, folder)
    elif (arrays := _arrays(workload)) is not None:
        from laggard.workloads.datasets.arrays import save_arrays

        save_arrays(arrays, folder)
    write_whole(folder / COMPLETE, b"")


def prepare_main(argument: str) -> None:
    """A process that prepares the data of a machine that has no evaluator.

    Args:
        argument: a `WorkerPlan` as JSON: that of any worker of the machine.
    """
    from laggard.workloads.plan import WorkerPlan

    plan = WorkerPlan.model_validate_json(argument)
    prepare_data(plan.workload, plan.output_path)


def open_data(workload: Workload, output_dir: Path, patience_s: float = 300.0) -> Data:
    """The prepared dataset; waits for `prepare_data` in another process.

    Raises:
        InputError: the dataset is not what it should be.
        WorkerError: nobody prepared it within `patience_s` real seconds.
    """
    folder = WorkerOutputDir(output_dir).data
    deadline_s = time.monotonic() + patience_s
    while not (folder / COMPLETE).exists():
        if time.monotonic() > deadline_s:
            raise WorkerError(
                f"the dataset was not prepared within {patience_s:.0f} s", -1, "the evaluator"
            )
        time.sleep(POLL_S)
    if isinstance(workload.dataset, ImageFolder):
        from laggard.workloads.datasets import image_folder

        return image_folder.load(folder)
    if isinstance(workload.dataset, Cifar10):
        from laggard.workloads.datasets import cifar10

        return cifar10.load(Path(workload.dataset.folder))
    return _open_arrays(workload, folder)


def _open_arrays(workload: Workload, folder: Path) -> Data:
    from laggard.workloads.datasets.arrays import DESCRIPTION, load_arrays

    if (folder / DESCRIPTION).exists():
        return load_arrays(folder)
    from laggard.workloads.datasets import own
    from laggard.workloads.datasets.dataset import Data

    data = own.load(workload.dataset.name, workload.seed)
    assert isinstance(data, Data)
    return data


def _arrays(workload: Workload) -> Arrays | None:
    """The dataset as arrays to save; None where workers read the original themselves."""
    spec = workload.dataset
    if isinstance(spec, Digits):
        from laggard.workloads.datasets import digits

        return digits.load()
    if isinstance(spec, Synthetic):
        from laggard.workloads.datasets import synthetic

        return synthetic.generate(spec, workload.seed)
    if isinstance(spec, Cifar10):
        from laggard.workloads.datasets import cifar10

        cifar10.load(Path(spec.folder))
        return None
    from laggard.workloads.datasets import own
    from laggard.workloads.datasets.dataset import Data

    loaded = own.load(spec.name, workload.seed)
    return None if isinstance(loaded, Data) else loaded
