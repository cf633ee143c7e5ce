"""Problems of the sections `stream` and `rehearsal` that a check finds without the samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from laggard.core.corrections.names import suggest_name
from laggard.core.errors import Problem
from laggard.core.yaml_source import KeyPath, YamlSource
from laggard.workloads.specification.datasets import (
    Cifar10,
    DatasetSpec,
    Digits,
    ImageFolder,
    Mnist5k,
    Synthetic,
)
from laggard.workloads.specification.stream import Births, RehearsalSpec, StreamSpec


def count_classes(dataset: DatasetSpec) -> int | None:
    """Return the number of classes of a dataset; None if only the dataset itself shows it."""
    if isinstance(dataset, Digits | Mnist5k | Cifar10):
        return 10
    return dataset.classes if isinstance(dataset, Synthetic) else None


def validate_stream(
    stream: StreamSpec, dataset: DatasetSpec, layers: Sequence[str], source: YamlSource
) -> Iterator[Problem]:
    """Yield the problems of a stream.

    Args:
        stream: section `stream`.
        dataset: dataset whose samples arrive.
        layers: layers that have workers.
        source: the parsed `workload.yaml`.
    """
    classes = count_classes(dataset)
    if stream.kind != "domain_incremental":
        yield from _check_groups(stream, classes, source)
    if stream.births is not None:
        key = ("stream", "births")
        yield from validate_births(stream.births, key, dataset, layers, source)
    for layer in stream.arrivals:
        if layer not in layers:
            yield source.locate_problem(
                ("stream", "arrivals", layer),
                "no worker is in a layer of this name",
                suggest_name(layer, layers),
            )


def _check_groups(stream: StreamSpec, classes: int | None, source: YamlSource) -> Iterator[Problem]:
    if not stream.classes:
        if classes is not None and stream.tasks > classes:
            yield source.locate_problem(
                ("stream", "tasks"),
                f"each task needs a class of its own, and the dataset has {classes}",
                f"use {classes} tasks or fewer",
            )
        return
    seen: set[int] = set()
    for number, group in enumerate(stream.classes):
        key = ("stream", "classes", number)
        if not group:
            yield source.locate_problem(key, "a task needs a class", "remove it, or add a class")
        for each in group:
            if classes is not None and each >= classes:
                rule = f"the dataset has no class {each}: its classes are 0 to {classes - 1}"
                yield source.locate_problem(key, rule, "use one of them")
            if each in seen:
                rule = f"class {each} is in two tasks"
                yield source.locate_problem(key, rule, "keep it in one of them")
            seen.add(each)
    missing = sorted({*range(classes or 0)} - seen)
    if missing:
        rule = f"class {missing[0]} of the dataset is in no task"
        yield source.locate_problem(("stream", "classes"), rule, "add it to one")


def validate_births(
    births: Births, place: KeyPath, dataset: DatasetSpec, layers: Sequence[str], source: YamlSource
) -> Iterator[Problem]:
    """Yield a problem for each birthplace or class that does not exist.

    Args:
        births: section `births`.
        place: key of the section.
        dataset: dataset whose samples have birthplaces.
        layers: layers that have workers.
        source: the parsed `workload.yaml`.
    """
    classes = count_classes(dataset)
    for layer, group in births.layers.items():
        key = (*place, "layers", layer)
        if layer not in layers:
            yield source.locate_problem(
                key, "no worker is in a layer of this name", suggest_name(layer, layers)
            )
        for each in group:
            if classes is not None and each >= classes:
                rule = f"the dataset has no class {each}: its classes are 0 to {classes - 1}"
                yield source.locate_problem(key, rule, "use one of them")


def validate_rehearsal(
    rehearsal: RehearsalSpec, stream: StreamSpec | None, dataset: DatasetSpec, source: YamlSource
) -> Iterator[Problem]:
    """Yield the problems of buffers of old samples."""
    if stream is None:
        yield source.locate_problem(
            ("rehearsal",),
            "old samples are those of a stream, and there is none",
            "add `stream`, or remove `rehearsal`",
        )
    if rehearsal.exchange == "global" and isinstance(dataset, ImageFolder):
        yield source.locate_problem(
            ("rehearsal", "exchange"),
            "files of images have different sizes, and samples that are exchanged have one",
            "use local, or a dataset of arrays",
        )
    classes = count_classes(dataset) or 0
    if rehearsal.size < classes:
        yield source.locate_problem(
            ("rehearsal", "size"),
            f"the buffer cannot hold one sample of each of the {classes} classes",
            f"use {classes} or more",
        )


def find_rehearsal_warnings(
    rehearsal: RehearsalSpec, batch_size: int, workers: int, source: YamlSource
) -> Iterator[Problem]:
    """Yield a warning if a step has more old samples than new ones."""
    if rehearsal.sample * workers > batch_size:
        yield source.locate_problem(
            ("rehearsal", "sample"),
            f"a step of {batch_size} new samples has up to {rehearsal.sample * workers} old ones,"
            " so the training mostly repeats its buffers",
            f"set it to {max(1, batch_size // workers)} or less",
        )
