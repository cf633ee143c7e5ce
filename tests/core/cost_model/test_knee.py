"""Knee: where two bounds of the speed meet, against a closed queue whose knee is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.cost_model.knee import find_knee
from laggard.core.errors import InputError


def _serve(workers: int, think_s: float, service_s: float) -> float:
    """Speed of a server without jitter: n / (Z + S) until it is busy all the time, then 1 / S."""
    return min(workers / (think_s + service_s), 1 / service_s)


@given(st.floats(0.01, 10), st.floats(0.01, 1))
def test_the_knee_of_a_closed_queue_is_its_saturation_point(
    think_s: float, service_s: float
) -> None:
    saturation = (think_s + service_s) / service_s
    numbers = range(1, int(saturation) + 3)
    knee = find_knee({each: _serve(each, think_s, service_s) for each in numbers})
    assert knee == pytest.approx(saturation, rel=1e-6)


def test_a_speed_that_still_grows_has_no_knee() -> None:
    assert find_knee({1: 1.0, 2: 2.0, 4: 3.9}) is None


def test_more_workers_that_slow_a_training_down_are_beyond_the_knee() -> None:
    assert find_knee({2: 20.0, 4: 40.0, 8: 60.0, 16: 30.0}) == pytest.approx(6.0)


@pytest.mark.parametrize("speeds", [{}, {1: 1.0}, {1: 1.0, 2: 0.0}, {0: 1.0, 2: 2.0}])
def test_speeds_without_a_knee_are_refused(speeds: dict[int, float]) -> None:
    with pytest.raises(InputError, match="no knee"):
        find_knee(speeds)
