"""The bound of what could be seen, against likelihood-ratio tests played many times on Gaussian
series."""

from __future__ import annotations

import math

import numpy as np
import pytest

from laggard.analysis.evaluate.detectability import (
    FALSE_ALARM_PROBABILITY,
    LEAST_EVIDENCE,
    MISS_PROBABILITY,
    compute_evidence,
    is_detectable,
)
from laggard.analysis.tables.columns import FloatArray


def log_likelihood_ratio(values: FloatArray, shift: float, sigma: float) -> FloatArray:
    """ln p(values | shifted) - ln p(values | not), of each row; written out, not simplified to the sum."""
    return ((values**2 - (values - shift) ** 2) / (2 * sigma**2)).sum(axis=1)


def error_rates(length: int, magnitude: float, sigma: float) -> tuple[float, float]:
    """False alarms and misses of the most powerful test whose threshold is set for
    `FALSE_ALARM_PROBABILITY`."""
    rng = np.random.default_rng(length)
    shift, plays = math.log(magnitude), 200_000
    quiet = log_likelihood_ratio(sigma * rng.standard_normal((plays, length)), shift, sigma)
    slow = log_likelihood_ratio(shift + sigma * rng.standard_normal((plays, length)), shift, sigma)
    threshold = float(np.quantile(quiet, 1.0 - FALSE_ALARM_PROBABILITY))
    return float((quiet > threshold).mean()), float((slow <= threshold).mean())


@pytest.mark.parametrize(("length", "sigma"), [(10, 0.05), (20, 0.15)])
def test_at_the_bound_the_best_test_errs_as_often_as_was_allowed(length: int, sigma: float) -> None:
    magnitude = math.exp(sigma * math.sqrt(LEAST_EVIDENCE / length))
    alarms, misses = error_rates(length, magnitude, sigma)
    assert alarms == pytest.approx(FALSE_ALARM_PROBABILITY, rel=0.05)
    assert misses == pytest.approx(MISS_PROBABILITY, rel=0.15)


@pytest.mark.parametrize("factor", [0.7, 1.4])
def test_less_evidence_is_too_little_and_more_is_enough(factor: float) -> None:
    magnitude = math.exp(0.1 * math.sqrt(factor * LEAST_EVIDENCE / 10))
    _, misses = error_rates(10, magnitude, 0.1)
    assert is_detectable(10, magnitude, 0.1) == (misses <= MISS_PROBABILITY) == (factor > 1)


@pytest.mark.parametrize(
    ("length", "magnitude", "sigma", "expected"),
    [
        (10, math.e, 1.0, 10.0),
        (40, math.exp(0.1), 0.05, 160.0),
        (40, 1.0, 0.05, 0.0),
        (1, 2.0, 0.0, math.inf),
        (1, 1.0, 0.0, 0.0),
    ],
)
def test_evidence(length: int, magnitude: float, sigma: float, expected: float) -> None:
    assert compute_evidence(length, magnitude, sigma) == pytest.approx(expected)


def test_the_bound_is_what_was_fixed() -> None:
    assert pytest.approx(22.4, abs=0.05) == LEAST_EVIDENCE
    assert not is_detectable(10, 1.2, 0.15)
    assert is_detectable(20, 1.2, 0.15)
