"""Which samples are whose, when training ends, and who hangs: pure functions."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.span_schema import Phase
from laggard.workloads.coordination.stopping import (
    accuracy_reached,
    is_last_by_steps,
    is_last_by_time,
)
from laggard.workloads.datasets.partition import Partition
from laggard.workloads.specification.training import Stop
from laggard.workloads.tracing.batch_loader import pad_indices
from laggard.workloads.tracing.heartbeat import Beat, Heartbeat, read_heartbeats, suspects

partitions = st.builds(
    Partition,
    samples=st.integers(1, 300),
    batch_size=st.integers(1, 100),
    world_size=st.integers(1, 12),
    seed=st.integers(0, 2**32 - 1),
)


@given(partitions, st.integers(0, 3))
def test_an_epoch_takes_every_sample_once(partition: Partition, epoch: int) -> None:
    taken: list[int] = []
    for position in range(partition.steps_per_epoch):
        step = epoch * partition.steps_per_epoch + position
        shares = [partition.share(step, rank) for rank in range(partition.world_size)]
        counts = [len(share.indices) for share in shares]
        assert max(counts) - min(counts) <= 1
        assert sum(counts) == shares[0].batch_size <= partition.batch_size
        assert {share.batch_size for share in shares} == {shares[0].batch_size}
        taken += [i for share in shares for i in share.indices.tolist()]
        assert partition.samples_through(step) == epoch * partition.samples + len(taken)
    assert sorted(taken) == list(range(partition.samples))


@given(partitions, st.integers(0, 50))
def test_the_split_of_a_batch_does_not_change_the_batch(partition: Partition, step: int) -> None:
    alone = Partition(partition.samples, partition.batch_size, 1, partition.seed)
    together = np.concatenate(
        [partition.share(step, rank).indices for rank in range(partition.world_size)]
    )
    assert np.array_equal(together, alone.share(step, 0).indices)


@given(partitions, st.integers(0, 3), st.randoms(use_true_random=False))
def test_an_epoch_takes_every_sample_once_whoever_takes_how_many(
    partition: Partition, epoch: int, dice: random.Random
) -> None:
    """Sizes are others in every step."""
    taken: list[int] = []
    for position in range(partition.steps_per_epoch):
        step = epoch * partition.steps_per_epoch + position
        drawn = dice.choices(range(partition.world_size), k=partition.samples_in(step))
        sizes = [drawn.count(rank) for rank in range(partition.world_size)]
        shares = [partition.share(step, rank, sizes) for rank in range(partition.world_size)]
        assert [len(share.indices) for share in shares] == sizes
        ends = list(itertools.accumulate(sizes))
        parts = [
            partition.part(step, range(end - size, end))
            for size, end in zip(sizes, ends, strict=True)
        ]
        assert all(
            map(
                np.array_equal,
                [part.indices for part in parts],
                [share.indices for share in shares],
            )
        )
        assert {part.batch_size for part in parts} == {sum(sizes)}
        assert (
            {share.batch_size for share in shares} == {partition.samples_in(step)} == {sum(sizes)}
        )
        taken += [i for share in shares for i in share.indices.tolist()]
        assert partition.samples_through(step) == epoch * partition.samples + len(taken)
    assert sorted(taken) == list(range(partition.samples))


@pytest.mark.parametrize("sizes", [(3, 3), (3, 3, 3), (5, -1, 4), (2, 2, 2, 2)])
def test_sizes_that_are_no_split_of_the_batch_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="step 0 needs 3 sizes of 0 or more that add up to 8"):
        Partition(20, 8, 3, 1).share(0, 0, sizes)


@given(partitions, st.integers(0, 50))
def test_weights_of_a_batch_sum_to_one(partition: Partition, step: int) -> None:
    """DDP divides by W: each sample then weighs 1/N."""
    share = partition.share(step, 0)
    per_sample = share.loss_scale / partition.world_size
    assert per_sample * share.batch_size == pytest.approx(1)


def test_epochs_and_seeds_differ() -> None:
    first = Partition(100, 100, 1, 1)
    assert not np.array_equal(first.share(0, 0).indices, first.share(1, 0).indices)
    assert not np.array_equal(
        first.share(0, 0).indices, Partition(100, 100, 1, 2).share(0, 0).indices
    )


@given(partitions, st.integers(1, 500), st.integers(1, 60))
def test_evaluations_come_every_so_many_samples(
    partition: Partition, every: int, steps: int
) -> None:
    evaluated = sum(partition.evaluates_after(step, every) for step in range(steps))
    taken = partition.samples_through(steps - 1)
    assert evaluated <= taken // every
    if every >= min(partition.batch_size, partition.samples):
        assert evaluated == taken // every


@pytest.mark.parametrize(
    ("indices", "least", "expected"),
    [([3, 4], 1, [3, 4]), ([3], 2, [3, 3]), ([], 1, [0]), ([], 2, [0, 0]), ([5, 6], 2, [5, 6])],
)
def test_padding(indices: list[int], least: int, expected: list[int]) -> None:
    assert pad_indices(np.array(indices, dtype=np.int64), least).tolist() == expected


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ([], False),
        ([0.96, 0.96], False),
        ([0.96, 0.95, 0.95], True),
        ([0.96, 0.94, 0.96, 0.96], False),
        ([0.1, 0.97, 0.94, 0.96, 0.96, 0.95], True),
    ],
)
def test_three_accurate_evaluations_in_a_row(accuracies: list[float], expected: bool) -> None:
    assert accuracy_reached(accuracies, Stop(accuracy=0.95)) is expected
    assert not accuracy_reached(accuracies, Stop(steps=3))


def test_steps_and_time() -> None:
    assert [is_last_by_steps(step, Stop(steps=3)) for step in range(4)] == [
        False,
        False,
        True,
        True,
    ]
    assert not is_last_by_steps(10**9, Stop(accuracy=0.5))
    assert [is_last_by_time(s, Stop(time_s=2.0)) for s in (0.0, 1.9, 2.0)] == [False, False, True]
    assert not is_last_by_time(1e9, Stop(steps=3))


def beat(rank: int, step: int, phase: Phase, age_s: float) -> Beat:
    return Beat(rank, step, phase, int(1e12 - age_s * 1e9), 100 + rank)


@pytest.mark.parametrize(
    ("beats", "expected"),
    [
        ([beat(0, 4, Phase.COMM, 9), beat(1, 4, Phase.FORWARD, 0.1)], ()),
        ([beat(0, 4, Phase.COMM, 9), beat(1, 4, Phase.BACKWARD, 9)], (1,)),
        (
            [beat(0, 4, Phase.COMM, 9), beat(1, 4, Phase.FETCH, 9), beat(2, 4, Phase.PREP, 9)],
            (1, 2),
        ),
        ([beat(0, 5, Phase.COMM, 9), beat(1, 4, Phase.COMM, 9)], (1,)),
        ([beat(0, 4, Phase.COMM, 9), beat(1, 4, Phase.COMM, 9)], (0, 1)),
        ([beat(0, 4, Phase.EVALUATE, 9), beat(1, 4, Phase.OPTIMIZER, 9)], (1,)),
        ([Beat(0, 0, Phase.FETCH, 0, 0), Beat(1, 0, Phase.FETCH, 0, 0)], ()),
    ],
)
def test_who_hangs(beats: list[Beat], expected: tuple[int, ...]) -> None:
    assert suspects(beats, int(1e12), 5) == expected


def test_beats_are_read_as_written(tmp_path: object) -> None:
    from pathlib import Path

    path = Path(str(tmp_path)) / "heartbeat"
    assert [b.time_ns for b in read_heartbeats(path, 3)] == [0, 0, 0]
    with Heartbeat(path, 2, 3) as third, Heartbeat(path, 0, 3) as first:
        third.beat(7, Phase.COMM.code, 123)
        first.beat(8, Phase.OTHER.code, 124)
    assert path.stat().st_size == 96
    read = read_heartbeats(path, 3)
    assert (read[2].step, read[2].phase, read[2].time_ns) == (7, Phase.COMM, 123)
    assert (read[0].step, read[0].phase, read[1].time_ns) == (8, Phase.OTHER, 0)
