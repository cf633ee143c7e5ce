"""Problems of a dataset that only the machine, or the models of a workload, can show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from laggard.core.edits import write_value
from laggard.core.errors import Problem
from laggard.core.yaml_source import KeyPath, YamlSource
from laggard.workloads.specification.datasets import Cifar10, DatasetSpec, ImageFolder, Synthetic


def find_dataset_problems(
    dataset: DatasetSpec, models: Mapping[KeyPath, str], source: YamlSource
) -> Iterator[Problem]:
    """Yield a problem if the dataset's folder is missing, or a model cannot process its samples.

    Args:
        dataset: the dataset.
        models: names of the models by their keys in the file.
        source: the parsed `workload.yaml`.
    """
    if isinstance(dataset, Cifar10 | ImageFolder) and not Path(dataset.folder).is_dir():
        yield source.locate_problem(
            ("dataset", "folder"),
            f"there is no folder {dataset.folder}",
            "write the path of an existing folder; relative paths start at the scenario's folder",
        )
    tokens = isinstance(dataset, Synthetic) and dataset.kind == "tokens"
    for key, model in models.items():
        if tokens and model != "transformer" and ":" not in model:
            yield source.locate_problem(
                key,
                "this model takes images, and the dataset gives tokens",
                write_value(key, "transformer", "use `model: transformer`"),
            )
