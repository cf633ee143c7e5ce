"""A stream's samples: each once a pass, in its task, at the rank where it is born."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.errors import InputError
from laggard.workloads.streams.stream_partition import (
    StreamPartition,
    draw_births,
    place_births,
)
from laggard.workloads.streams.task_stream import build_class_stream, split_classes


def make(
    samples: int, batch: int, ranks: int, tasks: int, passes: int, *, born: bool, seed: int
) -> tuple[StreamPartition, np.ndarray]:
    labels = np.arange(samples) % 6
    stream = build_class_stream(labels, split_classes(6, tasks, seed))
    births = draw_births(labels, ranks, 0.5, seed) if born else None
    made = StreamPartition(samples, batch, ranks, seed, stream=stream, passes=passes, births=births)
    return made, labels


@given(
    samples=st.integers(6, 200),
    batch=st.integers(1, 40),
    ranks=st.integers(1, 5),
    tasks=st.integers(1, 6),
    passes=st.integers(1, 3),
    born=st.booleans(),
    seed=st.integers(0, 50),
)
def test_every_sample_is_trained_on_once_a_pass(
    samples: int, batch: int, ranks: int, tasks: int, passes: int, born: bool, seed: int
) -> None:
    partition, labels = make(samples, batch, ranks, tasks, passes, born=born, seed=seed)
    used = np.zeros(samples)
    through = 0
    for step in range(partition.steps):
        task = partition.find_task(step)
        shares = [partition.share(step, rank) for rank in range(ranks)]
        indices = np.concatenate([share.indices for share in shares])
        assert len(indices) == shares[0].batch_size == partition.samples_in(step) <= batch
        assert {*labels[indices].tolist()} <= {*partition.stream.classes[task]}
        used[indices] += 1
        through += len(indices)
        assert partition.samples_through(step) == through
        if born:
            assert all(
                (partition.births[share.indices] == rank).all() for rank, share in enumerate(shares)
            )
        if partition.ends_task(step):
            done = np.concatenate(partition.stream.tasks[: task + 1])
            assert (used[done] == passes).all()
            assert used.sum() == passes * len(done)
            assert partition.evaluates_after(step, 10**9)
    assert (used == passes).all()
    with pytest.raises(InputError, match=f"the stream has {partition.steps} steps"):
        partition.share(partition.steps, 0)


def test_every_batch_has_about_the_same_part_of_what_each_rank_has() -> None:
    partition, labels = make(1200, 40, 4, 2, 1, born=True, seed=3)
    for task in range(2):
        steps = [s for s in range(partition.steps) if partition.find_task(s) == task]
        born = np.bincount(partition.births[partition.stream.tasks[task]], minlength=4)
        for step in steps:
            expected = born / len(steps)
            sizes = [len(partition.share(step, rank).indices) for rank in range(4)]
            assert np.abs(np.array(sizes) - expected).max() <= 2
    assert len({*labels[partition.stream.tasks[0]].tolist()}) == 3


def test_small_concentrations_give_a_class_to_few_ranks() -> None:
    labels = np.repeat(np.arange(10), 100)

    def count_ranks(concentration: float) -> float:
        births = draw_births(labels, 8, concentration, seed=1)
        return float(np.mean([len({*births[labels == each].tolist()}) for each in range(10)]))

    assert count_ranks(0.05) < 4
    assert count_ranks(100.0) == 8


def test_tiers_have_their_classes() -> None:
    labels = np.repeat(np.arange(4), 30)
    tiers = ["cloud", "edge", "edge", "fog"]
    births = place_births(labels, tiers, [("edge", [0, 1]), ("fog", [1])], seed=1)
    ranks = [sorted({*births[labels == each].tolist()}) for each in range(4)]
    assert ranks == [[1, 2], [1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]]
    assert np.bincount(births[labels == 1])[1:].tolist() == [10, 10, 10]
    with pytest.raises(InputError, match="no worker is in the layer moon"):
        place_births(labels, tiers, [("moon", [0])], seed=1)
