"""The time at which samples have arrived against the count of those that have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.rules.arrivals import ArrivalRule

RATES = st.floats(0.1, 1000)
BURSTS = st.integers(1, 500)
PERIODS = st.floats(0.1, 100)
RULES = st.one_of(
    st.builds(ArrivalRule, RATES),
    st.builds(ArrivalRule, st.just(0.0), BURSTS, PERIODS),
    st.builds(ArrivalRule, RATES, BURSTS, PERIODS),
)


@given(RULES, st.integers(1, 20_000))
def test_a_sample_is_there_at_its_time_and_not_before(rule: ArrivalRule, samples: int) -> None:
    time_s = rule.find_time_s(samples)
    assert rule.count(time_s * (1 + 1e-9) + 1e-9) >= samples - 1e-3
    if time_s > 1e-6:
        assert rule.count(time_s * (1 - 1e-9) - 1e-9) <= samples + 1e-3


@given(RULES, st.lists(st.integers(1, 20_000), min_size=2, max_size=2))
def test_later_samples_arrive_later(rule: ArrivalRule, samples: list[int]) -> None:
    assert rule.find_time_s(min(samples)) <= rule.find_time_s(max(samples)) + 1e-6


def test_a_burst_is_there_at_once_and_the_next_one_later() -> None:
    rule = ArrivalRule(2.0, burst=10, every_s=5.0)
    assert [rule.find_time_s(count) for count in (1, 10, 12, 20, 21, 30)] == pytest.approx(
        [0.0, 0.0, 1.0, 5.0, 5.0, 5.0]
    )
