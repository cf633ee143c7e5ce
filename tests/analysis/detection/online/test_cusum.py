"""Page's test against its theory: how seldom it is wrong, how soon it is right, and what spikes may
do to it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.analysis.detection.online.cusum import (
    LEAST_EVIDENCE_STEPS,
    advance_sums,
    compute_alarm_interval,
    compute_thresholds,
    has_reached,
)

RNG = np.random.default_rng


def run_lengths(
    allowance: float, threshold: float, paths: int, most: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Steps until a textbook CUSUM of normal noise first reaches its threshold, without our bounds
    on a step."""
    rng, total = RNG(1), np.zeros(paths)
    length = np.full(paths, float(most))
    for step in range(most):
        total = np.maximum(0.0, total + rng.standard_normal(paths) - allowance)
        length[(total >= threshold) & (length == most)] = step + 1
    return length


@pytest.mark.parametrize(("allowance", "steps"), [(0.25, 300.0), (0.5, 500.0), (1.0, 400.0)])
def test_thresholds_keep_the_rate_of_false_alarms(allowance: float, steps: float) -> None:
    """Siegmund's approximation is good to a few percent; the mean of censored run lengths is that
    of an exponential."""
    threshold = float(compute_thresholds(allowance, steps))
    lengths = run_lengths(allowance, threshold, 4000, int(3 * steps))
    mean = lengths.sum() / (lengths < 3 * steps).sum()
    assert mean == pytest.approx(steps, rel=0.12)


@given(st.floats(0.05, 5.0), st.floats(1e3, 1e8))
def test_a_threshold_solves_its_equation(allowance: float, steps: float) -> None:
    threshold = float(compute_thresholds(allowance, steps))
    b = threshold + 1.166
    length = (math.exp(2 * allowance * b) - 2 * allowance * b - 1) / (2 * allowance**2)
    assert length == pytest.approx(steps, rel=0.01) or threshold == 1.0


def test_more_series_are_given_longer() -> None:
    assert compute_alarm_interval(10, per_1000=0.5) == 20_000
    assert float(compute_thresholds(0.5, compute_alarm_interval(100))) > float(
        compute_thresholds(0.5, compute_alarm_interval(10))
    )


@given(st.floats(0.02, 50.0), st.floats(1.0, 1e6))
def test_no_spike_is_high_enough_to_raise_an_alarm_before_the_seventh_step(
    threshold: float, height: float
) -> None:
    total, bound = np.zeros(1), np.array([threshold])
    for _ in range(LEAST_EVIDENCE_STEPS - 1):
        total = advance_sums(total, np.array([height * threshold]), bound)
        assert not has_reached(total, bound)[0]
    assert has_reached(advance_sums(total, np.array([height * threshold]), bound), bound)[0]


@given(st.lists(st.floats(-100, 100), max_size=40))
def test_a_sum_stays_between_nothing_and_its_threshold(evidence: list[float]) -> None:
    total, bound = np.zeros(1), np.array([3.0])
    for each in evidence:
        total = advance_sums(total, np.array([each]), bound)
        assert 0.0 <= total[0] <= 3.0
