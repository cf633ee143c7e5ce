"""Who exchanges models with whom how often: against the definitions, on any links; and what comes
of measurements."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.rules.matching_policy import (
    FloatArray,
    MatchingPolicy,
    build_matchings,
    compute_spectral_gap,
    estimate_exchange_times,
    plan_matchings,
)
from laggard.workloads.strategies.peer.link_times import SMOOTHING, LinkTimes

parts = st.floats(0.01, 1.0)


@st.composite
def links(draw: st.DrawFn, smallest: int = 1) -> FloatArray:
    size = draw(st.integers(smallest, 9))
    times = draw(
        st.lists(st.sampled_from([0.001, 0.002, 0.01, 0.5, 20.0]), min_size=81, max_size=81)
    )
    above = np.triu(np.array(times).reshape(9, 9)[:size, :size], 1)
    return above + above.T


def two_sites(size: int, near_s: float, far_s: float) -> FloatArray:
    site = np.arange(2 * size) // size
    return np.where(site[:, None] == site[None, :], near_s, far_s) * (1 - np.eye(2 * size))


def matrix_of(size: int, pairs: tuple[tuple[int, int], ...]) -> FloatArray:
    """The two of a pair take their mean."""
    mixing = np.eye(size)
    for i, j in pairs:
        mixing[np.ix_([i, j], [i, j])] = 0.5
    return mixing


def expected_s(policy: MatchingPolicy, times_s: FloatArray) -> float:
    costs = [sum(times_s[pair] for pair in pairs) for pairs in policy.matchings]
    return float(policy.probabilities @ np.array(costs)) if costs else 0.0


@given(links())
def test_every_pair_is_in_a_matching_and_nobody_is_left_out_who_could_be_in(
    times_s: FloatArray,
) -> None:
    size, met = len(times_s), set()
    for pairs in build_matchings(times_s):
        places = [place for pair in pairs for place in pair]
        assert len(places) == len(set(places)) == size // 2 * 2
        met.update(pairs)
    assert met == set(combinations(range(size), 2))


@given(links(2), parts, parts)
def test_the_policy_mixes_enough_tries_everything_and_takes_no_longer(
    times_s: FloatArray, mixing: float, explore: float
) -> None:
    size = len(times_s)
    policy = plan_matchings(tuple(range(size)), times_s, mixing=mixing, explore=explore)
    count = len(policy.matchings)
    assert policy.probabilities.sum() == pytest.approx(1)
    assert (policy.probabilities >= explore / count - 1e-12).all()
    matrices = [matrix_of(size, pairs) for pairs in policy.matchings]
    for matrix in matrices:
        np.testing.assert_array_equal(matrix, matrix.T)
        np.testing.assert_allclose(matrix.sum(axis=0), 1)

    def second(probabilities: FloatArray) -> float:
        """Of E[W'W], which is what takes variance away (Boyd et al., 2006, theorem 3)."""
        squared = sum(
            p * matrix.T @ matrix for p, matrix in zip(probabilities, matrices, strict=True)
        )
        return float(np.sort(np.abs(np.linalg.eigvals(squared)))[-2])

    alike = np.full(count, 1 / count)
    assert 1 - second(policy.probabilities) >= mixing * (1 - second(alike)) - 1e-9
    assert 1 - second(policy.probabilities) == pytest.approx(
        compute_spectral_gap(size, policy.matchings, policy.probabilities)
    )
    assert expected_s(policy, times_s) <= expected_s(
        MatchingPolicy(policy.ranks, policy.matchings, alike), times_s
    ) * (1 + 1e-9)


def test_two_sites_meet_seldom_but_no_more_seldom_than_must_be() -> None:
    """Four ranks each, and far links ten times as slow: random pairs are far ones in four of seven
    cases."""
    times_s = two_sites(4, 0.01, 0.1)
    random_s = 4 * times_s[np.triu_indices(8, 1)].mean()
    taken = [
        expected_s(plan_matchings(tuple(range(8)), times_s, mixing=m, explore=0.05), times_s)
        for m in (0.1, 0.3, 0.6)
    ]
    assert taken == sorted(taken)
    assert taken[0] < 0.4 * random_s
    assert taken[1] < 0.6 * random_s
    for mixing, time_s in zip((0.1, 0.3, 0.6), taken, strict=True):
        assert time_s <= 1.25 * least_s(times_s, mixing)


def least_s(times_s: FloatArray, mixing: float) -> float:
    """The least expected time of two sites that mix so much, over all probabilities of the same
    matchings: near or far, by symmetry one number."""
    matchings = build_matchings(times_s)
    near = np.array([all(times_s[pair] < 0.05 for pair in pairs) for pairs in matchings])
    enough = mixing * compute_spectral_gap(
        8, matchings, np.full(len(matchings), 1 / len(matchings))
    )
    for far in np.linspace(0, 1, 2001):
        probabilities = np.where(near, (1 - far) / near.sum(), far / (~near).sum())
        if compute_spectral_gap(8, matchings, probabilities) >= enough - 1e-9:
            return expected_s(MatchingPolicy(tuple(range(8)), matchings, probabilities), times_s)
    raise AssertionError("no probabilities mix so much")


@given(links(2), st.integers(0, 2**31), st.integers(0, 10**6))
def test_partners_are_mutual(times_s: FloatArray, seed: int, step: int) -> None:
    ranks = tuple(3 * place + 1 for place in range(len(times_s)))
    policy = plan_matchings(ranks, times_s, mixing=0.5, explore=0.1)
    partners = {rank: policy.partner(rank, seed, step) for rank in ranks}
    assert sum(partner is None for partner in partners.values()) == len(ranks) % 2
    assert all(
        partners[partner] == rank for rank, partner in partners.items() if partner is not None
    )
    assert policy.partner(0, seed, step) is None


def test_matchings_are_drawn_as_often_as_they_should_be() -> None:
    policy = plan_matchings(tuple(range(4)), two_sites(2, 0.01, 0.1), mixing=0.2, explore=0.1)
    met = np.mean([policy.partner(0, 7, step) == 1 for step in range(4000)])
    near = next(
        p
        for pairs, p in zip(policy.matchings, policy.probabilities, strict=True)
        if (0, 1) in pairs
    )
    assert abs(met - near) < 4 * np.sqrt(near * (1 - near) / 4000)


def test_what_is_not_known_is_taken_from_the_other_way_or_tried() -> None:
    nan = np.nan
    rows = {
        5: np.array([nan] * 5 + [nan, nan, 0.3, 0.02]),
        6: np.array([nan] * 5 + [0.2, nan, nan, 0.01]),
        7: np.array([nan] * 5 + [0.4, nan, nan, 0.25]),
    }
    ranks, times_s = estimate_exchange_times(rows)
    assert ranks == (5, 6, 7)
    assert times_s[0, 1] == times_s[1, 0] == 0.2
    assert times_s[0, 2] == times_s[2, 0] == 0.4  # the slower way
    assert (
        times_s[1, 2] == 0.25
    )  # as fast as the fastest link, but nobody is faster than its computer
    _, nothing = estimate_exchange_times({0: np.full(3, nan), 1: np.full(3, nan)})
    assert (nothing == 0).all()


def test_times_are_smoothed_and_what_nobody_saw_end_only_bounds_them() -> None:
    times = LinkTimes(2)
    assert np.isnan(times.row).all()
    times.record_transfer(1, 5.0, was_queued=True)
    assert times.row[1] == 5.0
    times.record_transfer(1, 9.0, was_queued=True)
    assert times.row[1] == 5.0
    times.record_transfer(1, 1.0, was_queued=False)
    assert times.row[1] == pytest.approx(5 - 4 * SMOOTHING)
    times.record_gradient(2.0)
    assert times.row[2] == 2.0
