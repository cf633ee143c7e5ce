"""Objectives of a run in closed form."""

from __future__ import annotations

import pytest

from laggard.experiments.outcome import RankUse, cost, fairness


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([RankUse(100, 5.0)] * 4, 1.0),
        ([RankUse(100, 5.0), RankUse(0, 5.0), RankUse(0, 0.0), RankUse(0, 0.0)], 0.25),
        ([RankUse(400, 10.0), RankUse(100, 10.0)], 1.0),
        ([RankUse(100, 10.0), RankUse(50, 10.0, in_vain=50)], 1.5**2 / (2 * 1.25)),
    ],
    ids=["all alike", "one alone", "each as it can", "half in vain"],
)
def test_fairness_is_jains_index_of_what_was_applied_against_what_could_be(
    ranks: list[RankUse], expected: float
) -> None:
    assert fairness(ranks, 10.0) == pytest.approx(expected)


def test_cost_is_rent_and_bytes_between_tiers() -> None:
    prices = {"cloud": 1.2, "edge": 0.1, "gigabyte": 0.09}
    assert cost(3600.0, {"cloud": 2, "edge": 3, "fog": 1}, 10**10, prices) == pytest.approx(
        2.4 + 0.3 + 0.9
    )
    assert cost(3600.0, {"cloud": 2}, 0, {}) is None
