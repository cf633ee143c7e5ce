"""Averages across tiers cost no more than the limit; only need makes them more frequent."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from laggard.core.rules.deferral import DeferralRule, DeferredSynchronization, TierMeasurement

SECONDS = st.floats(1e-4, 100)
TIERS = st.lists(st.builds(TierMeasurement, SECONDS, SECONDS, st.floats(-5, 5)), min_size=1)
RULES = st.builds(DeferralRule, st.floats(0.01, 10), st.floats(0, 2))
INTERVALS = st.integers(1, 10_000)


@given(RULES, INTERVALS, TIERS)
def test_exchanges_take_at_most_their_part_of_the_time(
    rule: DeferralRule, previous: int, tiers: list[TierMeasurement]
) -> None:
    interval = rule.plan_interval(previous, tiers)
    steps_s = interval * max(each.step_s for each in tiers)
    assert min(each.exchange_s for each in tiers) <= rule.overhead * steps_s * (1 + 1e-9)


@given(RULES, INTERVALS, TIERS)
def test_only_need_makes_averages_more_frequent(
    rule: DeferralRule, previous: int, tiers: list[TierMeasurement]
) -> None:
    interval = rule.plan_interval(previous, tiers)
    if any(each.need > rule.tolerance for each in tiers):
        free = [TierMeasurement(0.0, each.step_s, each.need) for each in tiers]
        assert rule.plan_interval(previous, free) == max(1, previous // 2)
    else:
        assert interval >= 2 * previous


def test_without_a_measured_step_or_a_limit_only_need_counts() -> None:
    rule = DeferralRule(0.1, 0.2)
    assert rule.plan_interval(3, [TierMeasurement(1.0, 0.0, 0.0)]) == 6
    assert DeferralRule(None, 0.2).plan_interval(8, [TierMeasurement(1.0, 0.5, 0.3)]) == 4


@given(st.sets(st.integers(0, 200), min_size=1), st.none() | st.integers(0, 200))
def test_tiers_average_at_the_ends_of_tasks_and_in_the_planned_step(
    ends: set[int], planned: int | None
) -> None:
    rule = DeferredSynchronization(sorted(ends), planned)
    last = max(ends)
    due = [step for step in range(last + 1) if rule.is_due(step)]
    assert {*due} == {step for step in {*ends, planned} if step is not None and step <= last}
    for before, after in pairwise(due):
        assert all(rule.next(step) == after for step in range(before + 1, after + 1))
