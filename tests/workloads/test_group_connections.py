"""Connections that collectives need are open before training, and no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from laggard.workloads.strategies.base.group_connections import find_collective_peers
from tests.workloads.test_allreduce import run_case

if TYPE_CHECKING:
    from tests.workloads.conftest import Forkery


@pytest.mark.parametrize(
    ("place", "size", "expected"),
    [
        (0, 1, ()),
        (0, 2, (1,)),
        (1, 2, (0,)),
        (0, 8, (1, 2, 4, 7)),
        (1, 8, (0, 2, 3, 5)),
        (3, 8, (1, 2, 4, 7)),
        (6, 7, (0, 2, 5)),
    ],
)
def test_peers_are_the_ring_and_the_tree(place: int, size: int, expected: tuple[int, ...]) -> None:
    assert find_collective_peers(place, size) == expected


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 31, 32, 33, 100])
def test_both_ends_of_a_connection_know_it_and_all_places_are_reached(size: int) -> None:
    peers = [set(find_collective_peers(place, size)) for place in range(size)]
    for place, others in enumerate(peers):
        assert place not in others
        assert all(place in peers[other] for other in others)
        assert {(place + 1) % size, (place - 1) % size} - {place} <= others
        assert not place or place - (1 << place.bit_length() - 1) in others
    assert max(map(len, peers)) <= 2 + size.bit_length()


@pytest.mark.parametrize("world_size", [2, 5, 8])
def test_collectives_open_no_further_connection(
    forkery: Forkery, tmp_path: Path, world_size: int
) -> None:
    run_case(forkery, "connected", tmp_path, world_size, module="connection_cases")
    counts = [json.loads((tmp_path / f"sockets-{rank}").read_text()) for rank in range(world_size)]
    for rank, (connected, after_collectives, to_all, after_all_to_all) in enumerate(counts):
        assert after_collectives == connected
        assert after_all_to_all == to_all
        missing = world_size - 1 - len(find_collective_peers(rank, world_size))
        assert to_all - connected == missing


def test_every_rank_takes_over_the_model_of_rank_0(forkery: Forkery, tmp_path: Path) -> None:
    run_case(forkery, "agreed", tmp_path, 3, module="connection_cases", widths=[4, 4, 4])
    states = [torch.load(tmp_path / f"state-{rank}.pt", weights_only=True) for rank in range(3)]
    for state in states[1:]:
        assert all(torch.equal(state[name], states[0][name]) for name in states[0])


def test_a_model_of_another_size_is_refused(forkery: Forkery, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="all ranks must build the same model"):
        run_case(forkery, "agreed", tmp_path, 2, module="connection_cases", widths=[4, 5])
