"""The serial part is that of the law, and its interval has it when speeds are noisy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.analysis.estimates.serial_part import Scaling, fit_serial_part
from laggard.core.errors import InputError

NUMBERS = (1, 2, 4, 8, 16)


def speed(workers: int, serial: float, scaling: Scaling) -> float:
    """Of n workers relative to one, as Amdahl and Gustafson have it."""
    if scaling == "strong":
        return 1 / (serial + (1 - serial) / workers)
    return serial + (1 - serial) * workers


@given(
    st.floats(0.001, 0.999),
    st.floats(0.1, 1e6),
    st.sets(st.integers(1, 1000), min_size=3, max_size=8),
    st.sampled_from(["strong", "weak"]),
)
def test_exact_speeds_give_the_exact_part(
    serial: float, alone: float, numbers: set[int], scaling: Scaling
) -> None:
    speeds = {each: alone * speed(each, serial, scaling) for each in numbers}
    assert fit_serial_part(speeds, scaling).mean == pytest.approx(serial, abs=1e-6)


@pytest.mark.parametrize("scaling", ["strong", "weak"])
def test_the_interval_of_noisy_speeds_contains_the_part(scaling: Scaling) -> None:
    rng = np.random.default_rng(1)
    inside = 0
    for _ in range(400):
        speeds = {n: speed(n, 0.1, scaling) * np.exp(rng.normal(0, 0.02)) for n in NUMBERS}
        found = fit_serial_part(speeds, scaling)
        assert found.low is not None
        assert found.high is not None
        inside += found.low <= 0.1 <= found.high
    # 95 % of 400, within three standard deviations of a binomial count.
    assert 366 <= inside <= 394


def test_the_part_is_never_impossible() -> None:
    assert fit_serial_part({1: 1.0, 2: 2.2, 4: 4.9}, "strong").mean == 0.0
    falling = fit_serial_part({1: 3.0, 2: 2.0, 4: 1.0}, "weak")
    assert falling.mean == 1.0


@pytest.mark.parametrize("speeds", [{}, {1: 1.0, 2: 2.0}, {1: 1.0, 2: 0.0, 4: 1.0}])
def test_too_few_speeds_have_none(speeds: dict[int, float]) -> None:
    with pytest.raises(InputError, match="at least 3 numbers"):
        fit_serial_part(speeds, "strong")
