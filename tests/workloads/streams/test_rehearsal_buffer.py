"""Buffers keep, and draws choose, every sample with the probability that theory says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from laggard.workloads.streams.rehearsal_buffer import (
    BalancedBuffer,
    BufferSize,
    ReservoirBuffer,
    draw_from_all,
    draw_samples,
)
from tests.one_short import one_short

LEAST_P = 0.01
"""Significance below which frequencies count as unequal. Seeds are fixed, so nothing is left to
chance."""


def test_a_reservoir_keeps_all_samples_equally_often() -> None:
    kept = np.zeros(60)
    for seed in range(4000):
        buffer = ReservoirBuffer(7, np.random.default_rng(seed))
        for first in range(0, 60, 9):
            samples = np.arange(first, min(first + 9, 60))
            buffer.add(samples, np.zeros(len(samples)))
        kept[buffer.list_samples()] += 1
    assert kept.sum() == 4000 * 7
    assert chisquare(kept).pvalue > LEAST_P


def test_a_reservoir_that_shrinks_still_keeps_all_equally_often() -> None:
    kept = np.zeros(40)
    for seed in range(4000):
        buffer = ReservoirBuffer(8, np.random.default_rng(seed))
        buffer.add(np.arange(25), np.zeros(25))
        buffer.shrink(5)
        buffer.add(np.arange(25, 40), np.zeros(15))
        kept[buffer.list_samples()] += 1
    assert kept.sum() == 4000 * 5
    assert chisquare(kept).pvalue > LEAST_P


@given(
    size=st.integers(1, 30),
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=200),
    seed=st.integers(0, 1000),
)
def test_a_balanced_buffer_has_equal_places_for_all_classes(
    size: int, labels: list[int], seed: int
) -> None:
    buffer = BalancedBuffer(size, np.random.default_rng(seed))
    all_labels = np.array(labels)
    for first in range(0, len(labels), 11):
        samples = np.arange(first, min(first + 11, len(labels)))
        buffer.add(samples, all_labels[samples])
        kept = buffer.list_samples()
        assert len({*kept.tolist()}) == len(kept) <= size
        seen = all_labels[: samples[-1] + 1]
        classes, available = np.unique(seen, return_counts=True)
        held = np.array([(all_labels[kept] == each).sum() for each in classes])
        # A class has its part, unless too few of its samples came since it has so many places.
        assert (held <= -(-size // len(classes))).all()
        if len(classes) == 1:
            assert held[0] == min(size, available[0])


def test_a_balanced_buffer_keeps_rare_classes() -> None:
    labels = np.repeat([0, 1, 2], [900, 90, 10])
    order = np.random.default_rng(1).permutation(1000)
    balanced = BalancedBuffer(30, np.random.default_rng(2))
    reservoir = ReservoirBuffer(30, np.random.default_rng(2))
    for buffer in (balanced, reservoir):
        buffer.add(order, labels[order])
    assert np.bincount(labels[balanced.list_samples()]).tolist() == [10, 10, 10]
    assert np.bincount(labels[reservoir.list_samples()], minlength=3)[2] < 5


@given(
    size=st.integers(1, 30),
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=200),
    by_class=st.booleans(),
)
def test_the_size_of_a_buffer_is_known_without_it(
    size: int, labels: list[int], by_class: bool
) -> None:
    rng = np.random.default_rng(1)
    buffer = BalancedBuffer(size, rng) if by_class else ReservoirBuffer(size, rng)
    known = BufferSize(size, by_class)
    for first in range(0, len(labels), 7):
        part = np.array(labels[first : first + 7])
        buffer.add(np.arange(first, first + len(part)), part)
        known.add(part)
        assert known.count() == len(buffer.list_samples())


@pytest.mark.parametrize("seed", range(20))
def test_draws_from_a_buffer_are_unbiased(seed: int) -> None:
    rng, drawn = np.random.default_rng(seed), np.zeros(40)
    for _ in range(2000):
        chosen = draw_samples(np.arange(40), 10, rng)
        assert len({*chosen.tolist()}) == 10
        drawn[chosen] += 1
    # Draws are without replacement, which only makes frequencies more equal.
    assert chisquare(drawn).pvalue > LEAST_P


def test_no_more_samples_are_drawn_than_there_are() -> None:
    rng = np.random.default_rng(1)
    assert sorted(draw_samples(np.arange(3), 5, rng).tolist()) == [0, 1, 2]
    assert len(draw_samples(np.zeros(0, dtype=np.int64), 5, rng)) == 0


BUFFERS = [np.arange(5), np.arange(5, 45), np.arange(45, 60), np.zeros(0, dtype=np.int64)]


@pytest.mark.parametrize("seed", one_short(range(20)))
def test_global_draws_are_unbiased(seed: int) -> None:
    rng, drawn = np.random.default_rng(seed), np.zeros(60)
    for _ in range(10_000):
        for held in draw_from_all(BUFFERS, 10, rng):
            assert held.sample in BUFFERS[held.holder]
            drawn[held.sample] += 1
    assert drawn.sum() == 100_000
    # Draws are without replacement, which only makes frequencies more equal.
    assert chisquare(drawn).pvalue > LEAST_P


def test_local_draws_are_biased_where_buffers_are_unequal() -> None:
    rng, drawn = np.random.default_rng(1), np.zeros(60)
    for _ in range(2000):
        for buffer in BUFFERS[:3]:
            drawn[draw_samples(buffer, 4, rng)] += 1
    assert chisquare(drawn).pvalue < 1e-6
    # A sample of the smallest buffer is drawn eight times as often as one of the largest.
    assert drawn[:5].mean() / drawn[5:45].mean() == pytest.approx(8, rel=0.1)


def test_no_more_samples_of_all_are_drawn_than_there_are() -> None:
    rng = np.random.default_rng(1)
    assert sorted(each.sample for each in draw_from_all(BUFFERS, 99, rng)) == [*range(60)]
    assert draw_from_all([], 5, rng) == ()
