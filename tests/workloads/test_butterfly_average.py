"""The weighted mean in two rounds by itself: right and the same on all members, in whatever order
parts come, with no more bytes than a ring sends."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.workloads.strategies.background.butterfly_average import ButterflyAverage, VectorPart

FIRST = 5
"""The lowest rank: members need not be all ranks."""

weights = st.lists(st.integers(0, 1000), min_size=1, max_size=7)


@dataclass
class Members:
    """Members, and connections of which any may be the next to bring a part, in the order of its
    own."""

    vectors: torch.Tensor
    weights: list[int]
    seed: int
    sent: dict[int, list[VectorPart]] = field(default_factory=dict)
    averages: dict[int, ButterflyAverage] = field(init=False)

    def __post_init__(self) -> None:
        ranks = tuple(range(FIRST, FIRST + 2 * len(self.weights), 2))
        own = zip(ranks, self.vectors, self.weights, strict=True)
        self.averages = {
            rank: ButterflyAverage(ranks, rank, vector, weight) for rank, vector, weight in own
        }
        self._connections: dict[tuple[int, int], list[VectorPart]] = {}

    def run(self) -> None:
        order = random.Random(self.seed)
        begun: set[int] = set()
        while True:
            to_begin = [(rank, rank) for rank in self.averages if rank not in begun]
            heard = [
                pair for pair, parts in self._connections.items() if parts and pair[1] in begun
            ]
            if not to_begin and not heard:
                return
            sender, rank = order.choice(to_begin + heard)
            if sender == rank:
                begun.add(rank)
                self._send(rank, self.averages[rank].begin())
            else:
                self._send(
                    rank,
                    self.averages[rank].receive(sender, self._connections[sender, rank].pop(0)),
                )

    def _send(self, sender: int, parts: list[VectorPart]) -> None:
        self.sent.setdefault(sender, []).extend(parts)
        for part in parts:
            assert not self.averages[sender].complete or part.is_mean
            self._connections.setdefault((sender, part.rank), []).append(part)

    @property
    def means(self) -> list[torch.Tensor]:
        assert all(average.complete for average in self.averages.values())
        means = [average.mean for average in self.averages.values()]
        return [mean for mean in means if mean is not None]


def drawn(members: int, length: int, seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(
        (members, length), generator=torch.Generator().manual_seed(seed), dtype=dtype
    )


@settings(max_examples=80, deadline=None)
@given(weights, st.integers(1, 20), st.integers(0, 10**6))
def test_it_is_the_weighted_mean_in_any_order_of_arrival(
    counts: list[int], length: int, seed: int
) -> None:
    """Also of vectors shorter than there are members, and with members that count nothing, or none
    that counts."""
    vectors = drawn(len(counts), length, seed)
    before = vectors.clone()
    members = Members(vectors, counts, seed)
    members.run()
    assert torch.equal(vectors, before), "nobody's vector is changed"
    if not sum(counts):
        assert members.means == []
        return
    expected = np.average(vectors.numpy(), axis=0, weights=counts)
    assert len(members.means) == len(counts)
    np.testing.assert_allclose(members.means[0].numpy(), expected, rtol=0, atol=1e-12)
    assert all(torch.equal(mean, members.means[0]) for mean in members.means)


@settings(max_examples=30, deadline=None)
@given(weights.filter(lambda counts: sum(counts) > 0), st.integers(0, 10**6))
def test_it_is_the_same_bit_for_bit_on_all_members_where_sums_are_rounded(
    counts: list[int], seed: int
) -> None:
    members = Members(drawn(len(counts), 50, seed, torch.float32), counts, seed)
    members.run()
    assert {mean.numpy().tobytes() for mean in members.means} == {
        members.means[0].numpy().tobytes()
    }
    assert members.means[0].dtype == torch.float32


@pytest.mark.parametrize("length", [1, 3, 60, 61])
@pytest.mark.parametrize("world", [1, 2, 3, 5, 6])
def test_it_sends_what_an_optimal_all_reduce_does(world: int, length: int) -> None:
    """2 (n - 1) / n of a vector each, where n divides it, and so many in the mean where it does
    not; in 2 (n - 1) messages."""
    members = Members(drawn(world, length, 0), [1] * world, seed=1)
    members.run()
    sent = [sum(part.values.numel() for part in parts) for parts in members.sent.values()]
    assert sum(sent) == 2 * (world - 1) * length
    if length % world == 0:
        assert set(sent) == {2 * (world - 1) * length // world}
    assert {len(parts) for parts in members.sent.values()} == {2 * (world - 1)}


def test_who_counts_nothing_is_told_the_mean_of_the_others() -> None:
    vectors = torch.tensor([[float("1e6")] * 4, [1.0] * 4, [4.0] * 4], dtype=torch.float64)
    members = Members(vectors, [0, 2, 1], seed=0)
    members.run()
    assert [mean.tolist() for mean in members.means] == [[2.0] * 4] * 3


@pytest.mark.parametrize("weight", [0, 1, 7])
def test_one_member_alone_has_its_own_at_once(weight: int) -> None:
    vector = torch.tensor([1.5, -2.0, 3.25], dtype=torch.float64)
    alone = ButterflyAverage((3,), 3, vector, weight)
    assert not alone.complete
    assert alone.begin() == []
    assert alone.complete
    assert (alone.mean is None) == (weight == 0)
    assert alone.mean is None or torch.equal(alone.mean, vector)


def test_it_is_not_complete_before_the_last_part_has_come() -> None:
    vectors = drawn(2, 4, 0)
    first, second = (ButterflyAverage((0, 1), rank, vectors[rank], 1) for rank in range(2))
    (own,) = first.begin()
    (other,) = second.begin()
    assert not own.is_mean
    (mean,) = second.receive(0, own)
    assert (mean.is_mean, mean.rank, mean.weight) == (True, 0, 2)
    assert first.receive(1, mean) == [], "the other's mean, before its vector"
    assert not first.complete
    (answer,) = first.receive(1, other)
    assert first.complete
    assert not second.complete
    assert second.receive(0, answer) == []
    assert second.complete
