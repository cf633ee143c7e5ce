"""Partition of a workload's training samples: in epochs, or task by task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from laggard.core.errors import InputError
from laggard.workloads.clients.client_partition import ClientPartition
from laggard.workloads.datasets.dataset import Data, LabeledSplit
from laggard.workloads.datasets.partition import Partition
from laggard.workloads.specification.datasets import DataSettings
from laggard.workloads.specification.stream import Births, StreamSpec
from laggard.workloads.streams.stream_partition import (
    StreamPartition,
    draw_births,
    place_births,
)
from laggard.workloads.streams.task_stream import (
    TaskStream,
    build_class_stream,
    build_domain_stream,
    build_gradual_stream,
    require_disjoint,
    split_classes,
)

Indices = npt.NDArray[np.int64]


def plan_partition(
    settings: DataSettings, data: Data, ranks: int, tiers: Sequence[str] | None = None
) -> Partition:
    """Return the order of the training samples for all ranks and steps.

    Args:
        settings: settings of the workload.
        data: its opened dataset.
        ranks: number of ranks.
        tiers: layer of every rank's host; if None, where samples are born is left out, which
            changes the samples of ranks, but not how many all have together.

    Raises:
        InputError: the dataset has no such stream, or ends before the training.
    """
    samples = len(data.train)
    if settings.local_batch is not None:
        return _plan_clients(settings, settings.local_batch, data, ranks, tiers or ())
    if settings.stream is None:
        return Partition.of(settings, samples, ranks)
    if not isinstance(data.train, LabeledSplit):
        raise InputError(
            f"stream: the training samples of {settings.dataset.name} have no `labels` to order"
            " them by — give them that attribute, or return arrays"
        )
    labels = data.train.labels
    planned = StreamPartition(
        samples,
        min(settings.batch_size, samples),
        ranks,
        settings.seed,
        stream=build_stream(settings.stream, labels, data.classes, settings.seed),
        passes=settings.stream.passes,
        births=None
        if tiers is None
        else _assign_births(settings.stream, labels, tiers, settings.seed),
    )
    steps = settings.stop.steps
    if steps is not None and steps > planned.steps:
        raise InputError(
            f"stream: it has {planned.steps} steps of at most {planned.batch_size} samples and ends"
            f" before the {steps} steps of the training — set workload.stop.steps to"
            f" {planned.steps}, or give more passes"
        )
    return planned


def _plan_clients(
    settings: DataSettings, local_batch: int, data: Data, ranks: int, tiers: Sequence[str]
) -> ClientPartition:
    samples, births = len(data.train), settings.births
    even = ClientPartition(samples, samples, ranks, settings.seed, None, local_batch)
    if births is None:
        return even
    if births.owners:
        return replace(even, owners=_list_owners(births, samples, ranks))
    if not isinstance(data.train, LabeledSplit):
        raise InputError(
            f"births: the training samples of {settings.dataset.name} have no `labels` to divide"
            " them by — give them that attribute, or return arrays"
        )
    owners = _place_births(births, data.train.labels, tiers, settings.seed)
    return replace(even, owners=owners)


def _list_owners(births: Births, samples: int, ranks: int) -> Indices:
    """Return the rank that has each sample, -1 for none, [N].

    Raises:
        InputError: there is no such sample or rank.
    """
    owners = np.full(samples, -1, dtype=np.int64)
    if len(births.owners) > samples:
        raise InputError(
            f"births: sample {len(births.owners) - 1} has a worker, and the dataset has {samples}"
            f" training samples — number them from 0 to {samples - 1}"
        )
    owners[: len(births.owners)] = births.owners
    if owners.max() >= ranks:
        raise InputError(
            f"births: worker {owners.max()} has samples, and there are {ranks} workers — number"
            f" them from 0 to {ranks - 1}"
        )
    return owners


def build_stream(spec: StreamSpec, labels: Indices, classes: int, seed: int) -> TaskStream:
    """Return the tasks of a stream.

    Raises:
        InputError: a task has no samples, or a class is in two tasks or in none.
    """
    if spec.kind == "domain_incremental":
        return build_domain_stream(labels, spec.tasks, seed)
    groups = spec.classes or split_classes(classes, spec.tasks, spec.order)
    require_disjoint(groups, classes)
    if spec.kind == "task_free":
        return build_gradual_stream(labels, groups, seed)
    return build_class_stream(labels, groups)


def _assign_births(
    spec: StreamSpec, labels: Indices, tiers: Sequence[str], seed: int
) -> Indices | None:
    return None if spec.births is None else _place_births(spec.births, labels, tiers, seed)


def _place_births(births: Births, labels: Indices, tiers: Sequence[str], seed: int) -> Indices:
    if births.concentration is not None:
        return draw_births(labels, len(tiers), births.concentration, seed)
    if births.owners:
        owners = _list_owners(births, len(labels), len(tiers))
        if owners.min() < 0:
            raise InputError(
                f"births: sample {owners.argmin()} has no worker, and all samples of a stream"
                " arrive — give it one"
            )
        return owners
    return place_births(labels, tiers, [*births.layers.items()], seed)
