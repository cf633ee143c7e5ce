"""Samples that hosts hold: who trains on which of them, when they move, and what that is to save."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.workloads.balancing.allocation import AffineCost
from laggard.workloads.datasets.arrays import ArraySplit
from laggard.workloads.datasets.partition import Partition
from laggard.workloads.migration.held_samples import HeldSamplesOrder, Move, apportion
from laggard.workloads.migration.plan_moves import RankState, forecast_migration
from laggard.workloads.migration.sample_mover import MigratedSplit

SAMPLES, BATCH, RANKS = 103, 16, 3


@given(
    weights=st.lists(st.integers(0, 1000), min_size=1, max_size=20),
    share=st.floats(0, 1),
)
def test_apportioned_numbers_add_up_and_exceed_no_weight(weights: list[int], share: float) -> None:
    total = int(sum(weights) * share)
    shares = apportion(weights, total)
    assert sum(shares) == total
    assert all(0 <= each <= weight for each, weight in zip(shares, weights, strict=True))
    exact = [weight * total / max(1, sum(weights)) for weight in weights]
    assert all(abs(each - ideal) < 1 for each, ideal in zip(shares, exact, strict=True))


def take_epoch(orders: list[HeldSamplesOrder], first_step: int) -> list[list[int]]:
    """The samples that each rank trains on in an epoch, each rank by its own order."""
    trained: list[list[int]] = [[] for _ in orders]
    for step in range(first_step, first_step + orders[0].partition.steps_per_epoch):
        shares = [order.take_step(step, rank) for rank, order in enumerate(orders)]
        assert sum(len(share.indices) for share in shares) == shares[0].batch_size
        for rank, share in enumerate(shares):
            trained[rank] += share.indices.tolist()
    return trained


@given(
    moves=st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 2), st.integers(1, 2), st.integers(1, 40)),
        max_size=6,
    )
)
def test_every_epoch_trains_on_every_sample_once_whatever_moves(
    moves: list[tuple[int, int, int, int]],
) -> None:
    """Samples also move within an epoch. Every rank follows the order of all."""
    orders = [HeldSamplesOrder(Partition(SAMPLES, BATCH, RANKS, 5)) for _ in range(RANKS)]
    steps = orders[0].partition.steps_per_epoch
    for epoch in range(2):
        trained: list[int] = []
        for position in range(steps):
            step = epoch * steps + position
            for rank, order in enumerate(orders):
                trained += order.take_step(step, rank).indices.tolist()
            for at, source, ahead, count in moves:
                if at == position:
                    target = (source + ahead) % RANKS
                    chosen = orders[0].choose(source, count)
                    for order in orders:
                        order.move([Move(source, target, chosen)])
        assert sorted(trained) == list(range(SAMPLES))
    assert sum(orders[0].counts) == SAMPLES


def test_a_rank_trains_on_what_it_holds_only() -> None:
    orders = [HeldSamplesOrder(Partition(SAMPLES, BATCH, RANKS, 5)) for _ in range(RANKS)]
    first = [set(each) for each in take_epoch(orders, 0)]
    assert [len(each) for each in first] == [35, 34, 34]
    assert [set(each) for each in take_epoch(orders, 7)] == first
    moved = orders[0].choose(2, 20)
    for order in orders:
        order.move([Move(2, 0, moved)])
    later = [set(each) for each in take_epoch(orders, 14)]
    assert later == [first[0] | set(moved.tolist()), first[1], first[2] - set(moved.tolist())]


def test_steps_must_follow_one_another() -> None:
    order = HeldSamplesOrder(Partition(SAMPLES, BATCH, RANKS, 5))
    order.take_step(0, 0)
    with pytest.raises(ValueError, match="the samples of step 1 come next"):
        order.take_step(2, 0)


def test_the_forecast_levels_the_ranks() -> None:
    """A rank of a third of the speed is to hold a third of the samples of each other one."""
    costs = [AffineCost(0.0, 0.001), AffineCost(0.0, 0.001), AffineCost(0.0, 0.003)]
    ranks = [RankState(1400, cost, 1e6) for cost in costs]
    forecast = forecast_migration(ranks, 210, 1, 100.0)
    assert forecast.before_s == pytest.approx(70 * 0.003)
    assert forecast.after_s == pytest.approx(90 * 0.001)
    assert forecast.counts == ((2, 0, 400), (2, 1, 400))
    assert forecast.transfer_s == pytest.approx(800 * 100 / 1e6)
    assert forecast.relative_gain == pytest.approx(1 - 90 / 210)
    assert not forecast.saves(0.6)
    assert forecast.saves(0.7)


def test_equal_ranks_move_nothing_and_an_unknown_rate_saves_nothing() -> None:
    equal = [RankState(500, AffineCost(0.01, 0.001), 1e6)] * 4
    assert forecast_migration(equal, 64, 1, 100.0).counts == ()
    unequal = [RankState(500, AffineCost(0.0, s), 0.0) for s in (0.001, 0.002)]
    assert not forecast_migration(unequal, 64, 1, 100.0).saves(1e9)


def test_received_samples_are_those_that_were_sent() -> None:
    rng = np.random.default_rng(1)
    own = ArraySplit(rng.random((50, 4)).astype(np.float32), np.arange(50) % 5)
    empty = ArraySplit(np.zeros((50, 4), dtype=np.float32), np.arange(50) % 5)
    split = MigratedSplit(empty)
    for samples in (np.array([3, 40, 7]), np.array([8, 1])):
        split.store(samples, own.fetch(samples).inputs)  # type: ignore[arg-type]
    found = split.fetch(np.array([1, 2, 40, 8]))
    assert isinstance(found.inputs, np.ndarray)
    assert np.array_equal(found.inputs[[0, 2, 3]], own.inputs[[1, 40, 8]])
    assert not found.inputs[1].any()
    assert found.labels.tolist() == [1, 2, 0, 3]
