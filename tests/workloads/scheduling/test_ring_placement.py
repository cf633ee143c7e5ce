"""Rings against enumeration, and against the topology of a machine with eight V100."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.core.errors import InputError
from laggard.workloads.scheduling.ring_placement import place_ring

DOUBLE = ("03", "04", "12", "15", "23", "47", "56", "67")
SINGLE = ("01", "02", "13", "26", "37", "45", "46", "57")


def dgx() -> np.ndarray:
    """NVLinks of a DGX-1V, in GB/s."""
    rates = np.zeros((8, 8))
    for pairs, rate in ((DOUBLE, 50.0), (SINGLE, 25.0)):
        for first, other in pairs:
            rates[int(first), int(other)] = rates[int(other), int(first)] = rate
    return rates


def enumerate_best(rates: np.ndarray, size: int) -> float:
    """The best slowest link of all rings."""
    both, best = np.minimum(rates, rates.T), 0.0
    for first, *others in itertools.permutations(range(len(rates)), size):
        ring = (first, *others, first)
        best = max(best, min(both[a, b] for a, b in itertools.pairwise(ring)))
    return best


@pytest.mark.parametrize(
    ("size", "rate"), [(2, 50.0), (3, 25.0), (4, 25.0), (5, 25.0), (6, 25.0), (7, 25.0), (8, 50.0)]
)
def test_rings_of_eight_v100(size: int, rate: float) -> None:
    found = place_ring(dgx(), size)
    assert found.rate == rate
    assert len({*found.devices}) == size
    ring = (*found.devices, found.devices[0])
    assert min(dgx()[a, b] for a, b in itertools.pairwise(ring)) == rate


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 7), st.floats(0.2, 1.0))
def test_rings_are_as_good_as_all_rings(seed: int, devices: int, density: float) -> None:
    rng = np.random.default_rng(seed)
    rates = rng.integers(1, 9, (devices, devices)) * (rng.random((devices, devices)) < density)
    rates = np.maximum(rates, rates.T) if seed % 2 else rates
    for size in range(2, min(devices, 6) + 1):
        best = enumerate_best(rates.astype(float), size)
        if best > 0:
            assert place_ring(rates.astype(float), size).rate == best
        else:
            with pytest.raises(InputError, match="use fewer devices"):
                place_ring(rates.astype(float), size)


def test_the_fast_ring_among_64_devices_is_found() -> None:
    rng = np.random.default_rng(3)
    rates = rng.uniform(1, 5, (64, 64))
    hidden = rng.permutation(64)
    for first, other in itertools.pairwise([*hidden, hidden[0]]):
        rates[first, other] = rates[other, first] = 10.0
    assert place_ring(rates, 64).rate == 10.0
    assert place_ring(rates, 1).rate == float("inf")


@pytest.mark.parametrize("size", [0, 9])
def test_impossible_sizes_are_refused(size: int) -> None:
    with pytest.raises(InputError, match="free devices"):
        place_ring(dgx(), size)
    with pytest.raises(InputError, match="square"):
        place_ring(np.zeros((2, 3)), 2)


def test_only_free_devices_are_used() -> None:
    found = place_ring(dgx(), 2, free=[0, 1, 6])
    assert {*found.devices} == {0, 1}
    assert found.rate == 25.0
