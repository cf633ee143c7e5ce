"""Objectives of a run in closed form."""

from __future__ import annotations

import pytest

from laggard.run_folder.outcome import RankUsage, compute_cost, compute_fairness


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([RankUsage(100, 5.0)] * 4, 1.0),
        ([RankUsage(100, 5.0), RankUsage(0, 5.0), RankUsage(0, 0.0), RankUsage(0, 0.0)], 0.25),
        ([RankUsage(400, 10.0), RankUsage(100, 10.0)], 1.0),
        ([RankUsage(100, 10.0), RankUsage(50, 10.0, discarded=50)], 1.5**2 / (2 * 1.25)),
    ],
    ids=["all alike", "one alone", "each as it can", "half in vain"],
)
def test_fairness_is_jains_index_of_what_was_applied_against_what_could_be(
    ranks: list[RankUsage], expected: float
) -> None:
    assert compute_fairness(ranks, 10.0) == pytest.approx(expected)


def test_cost_is_rent_and_bytes_between_tiers() -> None:
    prices = {"cloud": 1.2, "edge": 0.1, "gigabyte": 0.09}
    assert compute_cost(3600.0, {"cloud": 2, "edge": 3, "fog": 1}, 10**10, prices) == pytest.approx(
        2.4 + 0.3 + 0.9
    )
    assert compute_cost(3600.0, {"cloud": 2}, 0, {}) is None
