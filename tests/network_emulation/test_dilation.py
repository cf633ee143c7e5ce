"""The smallest dilation: against brute force over all placements."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.network_emulation.dilation import (
    CORE_CAPACITY,
    ShareKind,
    auto_dilation,
    best_placement,
    compute_load,
)

_shares = st.lists(
    st.sampled_from([0.05, 0.1, 0.16, 0.25, 0.32, 0.5, 0.8, 1.0]), min_size=1, max_size=6
)


def _named(shares: list[float]) -> dict[str, float]:
    return {f"h{i}": share for i, share in enumerate(shares)}


def _cpu_time(share: float, kind: ShareKind) -> float:
    """What a host is planned to need: as a speed, CPU time buys 1 / (2 - share) of what it buys at
    full speed."""
    return share * (2 - share) if kind is ShareKind.SPEED else share


def _smallest(shares: list[float], capacity: float, kind: ShareKind) -> float:
    """Smallest D >= 1 at which all fit, by bisection."""
    low, high = 1.0, 1000.0
    if sum(_cpu_time(share, kind) for share in shares) <= capacity:
        return low
    for _ in range(60):
        middle = (low + high) / 2
        if sum(_cpu_time(share / middle, kind) for share in shares) <= capacity:
            high = middle
        else:
            low = middle
    return high


def _by_brute_force(shares: dict[str, float], cores: int, reserve: float, kind: ShareKind) -> float:
    hosts = list(shares)
    placements = (
        tuple(
            tuple(h for h, c in zip(hosts, chosen, strict=True) if c == core)
            for core in range(cores)
        )
        for chosen in itertools.product(range(cores), repeat=len(hosts))
    )
    heaviest = (
        max(
            _smallest([shares[h] for h in core], CORE_CAPACITY if len(core) > 1 else 1.0, kind)
            for core in placement
            if core
        )
        for placement in placements
    )
    return max(_smallest(list(shares.values()), cores - reserve, kind), min(heaviest))


@pytest.mark.parametrize(
    ("shares", "cores", "reserve", "expected"),
    [
        ([0.25, 0.25], 2, 0.5, 1.0),
        ([1.0], 2, 0.5, 1.0),
        ([1.0] * 8, 2, 0.5, (8 + 52**0.5) / 1.5),
        ([1.0, 1.0], 2, 0.0, 1.0),
        ([0.5, 0.5, 0.5], 2, 0.5, (1 + (1 - CORE_CAPACITY / 2) ** 0.5) / CORE_CAPACITY),
        ([0.2, 0.2, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05], 2, 0.5, 1.0),
        ([], 1, 0.5, 1.0),
    ],
)
def test_known_cases(shares: list[float], cores: int, reserve: float, expected: float) -> None:
    assert auto_dilation(_named(shares), cores, reserve) == pytest.approx(expected)


@settings(deadline=None, max_examples=150)
@given(_shares, st.integers(1, 3), st.sampled_from([0.0, 0.25, 0.5]), st.sampled_from(ShareKind))
def test_as_good_as_brute_force_within_multifit_s_bound(
    shares: list[float], cores: int, reserve: float, kind: ShareKind
) -> None:
    named = _named(shares)
    best = _by_brute_force(named, cores, reserve, kind)
    found = auto_dilation(named, cores, reserve, kind)
    assert best - 1e-9 <= found <= best * 13 / 11 / CORE_CAPACITY + 1e-9


@given(st.floats(0.001, 1.0), st.floats(0.001, 1.0))
def test_a_greater_share_is_a_greater_load_between_once_and_twice_the_share(
    one: float, other: float
) -> None:
    small, great = sorted((one, other))
    assert small <= compute_load(small) <= 2 * small
    assert compute_load(small) <= compute_load(great)


@given(_shares, st.integers(1, 4), st.sampled_from(ShareKind))
def test_every_host_is_placed_once_and_fits(
    shares: list[float], cores: int, kind: ShareKind
) -> None:
    named = _named(shares)
    placement, dilation = best_placement(named, cores, 0.5, kind)
    assert sorted(host for core in placement for host in core) == sorted(named)
    for core in placement:
        cpu_time = sum(_cpu_time(named[host] / dilation, kind) for host in core)
        assert cpu_time <= (1.0 if len(core) == 1 else CORE_CAPACITY) + 1e-9


@pytest.mark.parametrize(
    ("shares", "cores", "reserve"), [([0.5], 1, 1.0), ([0.0], 2, 0.5), ([1.5], 2, 0.5)]
)
def test_nonsense_is_refused(shares: list[float], cores: int, reserve: float) -> None:
    with pytest.raises(ValueError, match=r"share|reserve"):
        auto_dilation(_named(shares), cores, reserve)
