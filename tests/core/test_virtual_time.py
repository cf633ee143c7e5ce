"""Dilation: a round trip changes nothing, and only slowing down is possible."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.virtual_time import Dilation

factors = st.floats(min_value=1.0, max_value=1e6)
values = st.floats(min_value=0.0, max_value=1e9)


@given(factor=factors, value=values)
def test_round_trips(factor: float, value: float) -> None:
    dilation = Dilation(factor)
    assert dilation.virtual_s(dilation.real_s(value)) == pytest.approx(value)
    assert dilation.real_mbps(value) * factor == pytest.approx(value)
    assert dilation.real_share(value) * factor == pytest.approx(value)
    assert dilation.real_ms(value) == pytest.approx(value * factor)


@given(factor=factors, nanoseconds=st.integers(min_value=0, max_value=2**53))
def test_nanoseconds_stay_whole(factor: float, nanoseconds: int) -> None:
    virtual = Dilation(factor).virtual_ns(nanoseconds)
    assert isinstance(virtual, int)
    assert virtual == pytest.approx(nanoseconds / factor, abs=1)


@given(
    factor=factors,
    rate=st.floats(min_value=0.1, max_value=1e4),
    delay=st.floats(min_value=0.01, max_value=1e3),
)
def test_bandwidth_delay_product_is_kept(factor: float, rate: float, delay: float) -> None:
    dilation = Dilation(factor)
    assert dilation.real_mbps(rate) * dilation.real_ms(delay) == pytest.approx(rate * delay)


def test_one_is_real_time() -> None:
    assert Dilation().real_ms(7.0) == Dilation().virtual_s(7.0) == 7.0


@pytest.mark.parametrize("factor", [0.99, 0.0, -1.0, math.nan, math.inf, -math.inf])
def test_only_slower(factor: float) -> None:
    with pytest.raises(ValueError, match="slowed down"):
        Dilation(factor)
