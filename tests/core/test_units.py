"""Quantities: tables of what tc means by its notation, and hostile text."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core import units

PARSERS: tuple[Callable[[object], float], ...] = (
    units.parse_delay_ms,
    units.parse_rate_mbps,
    units.parse_loss_percent,
    units.parse_share,
    units.parse_duration_s,
    units.parse_size_bytes,
    units.parse_latency_ms,
    units.parse_throughput_mb_per_s,
)


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        (units.parse_delay_ms, "10ms", 10.0),
        (units.parse_delay_ms, "0.5s", 500.0),
        (units.parse_delay_ms, "250us", 0.25),
        (units.parse_delay_ms, "1000", 1.0),  # tc: bare is microseconds
        (units.parse_delay_ms, 1000, 1.0),
        (units.parse_delay_ms, " .5 ms ", 0.5),
        (units.parse_delay_ms, "0ms", 0.0),
        (units.parse_rate_mbps, "100mbit", 100.0),
        (units.parse_rate_mbps, "1Gbit", 1000.0),
        (units.parse_rate_mbps, "1mbps", 8.0),  # tc: bytes a second
        (units.parse_rate_mbps, "1mibit", 1.048576),
        (units.parse_rate_mbps, "1000000", 1.0),  # tc: bare is bits a second
        (units.parse_loss_percent, "5%", 5.0),
        (units.parse_loss_percent, "0%", 0.0),
        (units.parse_loss_percent, "100 %", 100.0),
        (units.parse_share, "25%", 0.25),
        (units.parse_share, "100%", 1.0),
        (units.parse_duration_s, "10s", 10.0),
        (units.parse_duration_s, "5min", 300.0),
        (units.parse_duration_s, "1h", 3600.0),
        (units.parse_duration_s, 2.5, 2.5),
        (units.parse_size_bytes, "1GiB", 2**30),
        (units.parse_size_bytes, "1.5kB", 1500),
        (units.parse_latency_ms, "5ms", 5.0),
        (units.parse_latency_ms, "200us", 0.2),
        (units.parse_latency_ms, "0ms", 0.0),
        (units.parse_throughput_mb_per_s, "20MB/s", 20.0),
        (units.parse_throughput_mb_per_s, "1GiB/s", 1073.741824),
    ],
)
def test_means_what_tc_means(
    parse: Callable[[object], float], text: object, expected: float
) -> None:
    assert parse(text) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize(
    "value",
    [None, True, False, [], {}, "", " ", "-1ms", "-5%", "nan", "inf", "1e3ms", "10 parsecs", "10ms10ms", "ms", "%", "1,5ms", "٣ms",
     "10mß", "1" * 65, math.nan, math.inf, -1, 10**400],
)  # fmt: skip
def test_refuses_with_a_rule(parse: Callable[[object], float], value: object) -> None:
    with pytest.raises(ValueError, match="such as"):
        parse(value)


@pytest.mark.parametrize(
    ("parse", "value"),
    [
        (units.parse_rate_mbps, "0mbit"),
        (units.parse_rate_with_unit_mbps, "10"),
        (units.parse_loss_percent, "100.1%"),
        (units.parse_loss_percent, "5"),
        (units.parse_loss_percent, 0.05),
        (units.parse_share, "0%"),
        (units.parse_share, "101%"),
        (units.parse_size_bytes, "0.5B"),
        (units.parse_latency_ms, "5"),
        (units.parse_latency_ms, 5),
        (units.parse_throughput_mb_per_s, "20MB"),
        (units.parse_throughput_mb_per_s, "0MB/s"),
    ],
)
def test_refuses_out_of_range(parse: Callable[[object], float], value: object) -> None:
    with pytest.raises(ValueError, match="such as"):
        parse(value)


@pytest.mark.parametrize("text", ["10mbps", "10 MBps", "80Mbps"])
def test_bytes_per_second_are_refused_with_both_readings(text: str) -> None:
    number = 80 if "80" in text else 10
    with pytest.raises(ValueError, match=f"write {8 * number}mbit, or {number}mbit"):
        units.parse_rate_with_unit_mbps(text)


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text", ["10" + " " * 200_000 + "!", "9" * 200_000, " " * 200_000, "1" + "a" * 200_000]
)
def test_hostile_text_is_refused_soon(parse: Callable[[object], float], text: str) -> None:
    with pytest.raises(ValueError, match="such as"):
        parse(text)


@pytest.mark.parametrize("parse", PARSERS)
@given(value=st.one_of(st.text(), st.integers(), st.floats(), st.none(), st.booleans()))
def test_parses_to_a_finite_number_or_says_why(
    parse: Callable[[object], float], value: object
) -> None:
    try:
        parsed = parse(value)
    except ValueError as error:
        said = str(error)
    else:
        said = "such as" if math.isfinite(parsed) and parsed >= 0 else f"{parsed}"
    assert "such as" in said


@given(number=st.floats(min_value=0.001, max_value=1e6))
def test_units_agree_with_each_other(number: float) -> None:
    assert units.parse_delay_ms(f"{number:.6f}s") == pytest.approx(
        1000 * units.parse_delay_ms(f"{number:.6f}ms")
    )
    assert units.parse_rate_mbps(f"{number:.6f}mbps") == pytest.approx(
        8 * units.parse_rate_mbps(f"{number:.6f}mbit")
    )
    assert units.parse_duration_s(f"{number:.6f}min") == pytest.approx(
        60 * units.parse_duration_s(f"{number:.6f}s")
    )
