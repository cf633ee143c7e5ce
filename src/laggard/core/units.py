"""Quantities as people write them, parsed once at the door into numbers whose names carry the unit.

Rates and delays follow `tc(8)`, because E2Clab hands them to `tc` as they are: `mbit` is 10^6 bits
a second while `mbps` is 10^6 *bytes* a second; a delay without a unit is microseconds, a rate
without one bits a second. In our own files nobody expects that: there the unit is always written.

Each parser takes text (or, where no unit is possible, a number) and raises `ValueError` whose
message gives the rule and an example. The `Annotated` types at the end are what the rooms' models
use.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

_LONGEST_TEXT = 64
_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_TIME_MS: Mapping[str, float] = {
    "us": 1e-3, "usec": 1e-3, "usecs": 1e-3, "ms": 1.0, "msec": 1.0, "msecs": 1.0, "s": 1e3,
    "sec": 1e3, "secs": 1e3,
}  # fmt: skip
_RATE_MBPS: Mapping[str, float] = {
    "bit": 1e-6, "kbit": 1e-3, "mbit": 1.0, "gbit": 1e3, "tbit": 1e6,
    "kibit": 1024e-6, "mibit": 1024**2 * 1e-6, "gibit": 1024**3 * 1e-6, "tibit": 1024**4 * 1e-6,
    "bps": 8e-6, "kbps": 8e-3, "mbps": 8.0, "gbps": 8e3, "tbps": 8e6,
    "kibps": 8 * 1024e-6, "mibps": 8 * 1024**2 * 1e-6, "gibps": 8 * 1024**3 * 1e-6,
    "tibps": 8 * 1024**4 * 1e-6,
}  # fmt: skip
_DURATION_S: Mapping[str, float] = {
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "min": 60.0,
    "m": 60.0,
    "h": 3600.0,
}
_BYTES: Mapping[str, float] = {
    "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
    "kib": 1024.0, "mib": 1024.0**2, "gib": 1024.0**3, "tib": 1024.0**4,
}  # fmt: skip


def _parse_quantity(
    value: object, units: Mapping[str, float], bare: float | None, rule: str
) -> float:
    match = _match_bounded(rf"{_NUMBER}\s*([A-Za-z]*)", _to_text(value))
    scale = None if match is None else units.get(match[2].lower()) if match[2] else bare
    if match is None or scale is None:
        raise ValueError(rule)
    number = float(match[1]) * scale
    if not math.isfinite(number):
        raise ValueError(rule)
    return number


def _to_text(value: object) -> str:
    """Text as written; a bare number (not true or false) in plain decimals."""
    if isinstance(value, str):
        return value
    plain = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18
    return f"{value:.12f}" if plain else ""


def _match_bounded(expression: str, text: str) -> re.Match[str] | None:
    # The bound comes before the expression: hostile text must not make it backtrack for minutes.
    return re.fullmatch(expression, text.strip(), re.ASCII) if len(text) <= _LONGEST_TEXT else None


def parse_delay_ms(value: object) -> float:
    """Delay in milliseconds from tc's notation: `10ms`, `0.5s`, `250us`."""
    return _parse_quantity(
        value, _TIME_MS, 1e-3, "a delay is a number and us, ms or s, such as 10ms"
    )


def parse_delay_with_unit_ms(value: object) -> float:
    """Delay in milliseconds from `10ms`, `0.5s`, `250us`; its unit is always written."""
    return _parse_quantity(
        value, _TIME_MS, None, "a delay is a number with its unit, us, ms or s, such as 10ms"
    )


def parse_rate_with_unit_mbps(value: object) -> float:
    """Rate in Mbit/s from `100mbit`, `1gbit`; above zero; its unit is always written."""
    rule = "a rate is a positive number with its unit, kbit, mbit or gbit, such as 100mbit"
    rate = _parse_quantity(value, _RATE_MBPS, None, rule)
    if rate <= 0:
        raise ValueError(rule)
    return rate


def parse_latency_ms(value: object) -> float:
    """Latency in milliseconds from `5ms`, `200us`, `1s`; its unit is always written."""
    return _parse_quantity(
        value, _TIME_MS, None, "a latency is a number and us, ms or s, such as 5ms"
    )


def parse_rate_mbps(value: object) -> float:
    """Rate in Mbit/s from tc's notation: `100mbit`, `1gbit`; above zero."""
    rule = "a rate is a positive number and kbit, mbit or gbit, such as 100mbit"
    rate = _parse_quantity(value, _RATE_MBPS, 1e-6, rule)
    if rate <= 0:
        raise ValueError(rule)
    return rate


def parse_loss_percent(value: object) -> float:
    """Loss in percent, 0 to 100, from `5%`."""
    return _parse_percent(value, 100.0, "a loss is a percentage from 0% to 100%, such as 1%")


def parse_share(value: object) -> float:
    """CPU share as a fraction of one core from `25%`; above zero, at most one core."""
    rule = "a cpu share is a percentage of one core above 0% and at most 100%, such as 25%"
    share = _parse_percent(value, 100.0, rule) / 100.0
    if share <= 0:
        raise ValueError(rule)
    return share


def _parse_percent(value: object, top: float, rule: str) -> float:
    match = _match_bounded(rf"{_NUMBER}\s*%", value) if isinstance(value, str) else None
    if match is None or not float(match[1]) <= top:
        raise ValueError(rule)
    return float(match[1])


def parse_duration_s(value: object) -> float:
    """Duration in seconds from `10s`, `5min`, `1h`, or a bare number of seconds."""
    return _parse_quantity(
        value, _DURATION_S, 1.0, "a duration is a number, 0 or more, and s, min or h, such as 10s"
    )


def parse_size_bytes(value: object) -> int:
    """Size in bytes from `1GiB`, `512MB`; above zero; its unit is always written."""
    rule = "a size is a positive number with its unit, kB, MB, GB, KiB, MiB or GiB, such as 1GiB"
    size = _parse_quantity(value, _BYTES, None, rule)
    if size < 1:
        raise ValueError(rule)
    return int(size)


def parse_throughput_mb_per_s(value: object) -> float:
    """Storage throughput in MB/s (10^6 bytes) from `20MB/s`; above zero."""
    rule = "a throughput is a positive number and kB/s, MB/s or GB/s, such as 20MB/s"
    if not isinstance(value, str) or not value.strip().lower().endswith("/s"):
        raise ValueError(rule)
    throughput = _parse_quantity(value.strip()[:-2], _BYTES, None, rule) / 1e6
    if throughput <= 0:
        raise ValueError(rule)
    return throughput


def _make_quantity_type(
    parse: Callable[[object], object],
    description: str,
    ending: str,
    *examples: str,
    bare: bool = True,
) -> tuple[object, object]:
    """The validator of a quantity and its JSON Schema; `ending` is what may follow the number, as a
    regular expression.
    """
    pattern = rf"^\s*(\d+(\.\d*)?|\.\d+)\s*({ending})\s*$"
    kind = ["string", "number"] if bare else "string"
    schema = {
        "type": kind,
        "pattern": pattern,
        "description": description,
        "examples": list(examples),
    }
    return BeforeValidator(parse), WithJsonSchema(schema)


_delay = _make_quantity_type(parse_delay_ms, "one-way delay, in tc's notation", "[A-Za-z]*", "10ms")
_latency = _make_quantity_type(
    parse_latency_ms, "time that every access takes", "[A-Za-z]+", "5ms", bare=False
)
_rate = _make_quantity_type(parse_rate_mbps, "rate, in tc's notation", "[A-Za-z]*", "100mbit")
_delay_with_unit = _make_quantity_type(
    parse_delay_with_unit_ms, "one-way delay", "[A-Za-z]+", "10ms", bare=False
)
_rate_with_unit = _make_quantity_type(
    parse_rate_with_unit_mbps, "rate", "[A-Za-z]+", "100mbit", bare=False
)
_loss = _make_quantity_type(
    parse_loss_percent,
    "packet loss, independent unless heterogeneity.yaml gives a burst",
    "%",
    "1%",
    bare=False,
)
_share = _make_quantity_type(parse_share, "share of one core", "%", "25%", bare=False)
_duration = _make_quantity_type(parse_duration_s, "duration", "[A-Za-z]*", "10s", "5min")
_size = _make_quantity_type(parse_size_bytes, "size in bytes", "[A-Za-z]+", "1GiB", bare=False)
_throughput = _make_quantity_type(
    parse_throughput_mb_per_s, "storage throughput", "[A-Za-z]+/[sS]", "20MB/s", bare=False
)

DelayMs = Annotated[float, _delay[0], _delay[1]]
LatencyMs = Annotated[float, _latency[0], _latency[1]]
RateMbps = Annotated[float, _rate[0], _rate[1]]
DelayWithUnitMs = Annotated[float, _delay_with_unit[0], _delay_with_unit[1]]
RateWithUnitMbps = Annotated[float, _rate_with_unit[0], _rate_with_unit[1]]
LossPercent = Annotated[float, _loss[0], _loss[1]]
Share = Annotated[float, _share[0], _share[1]]
DurationS = Annotated[float, _duration[0], _duration[1]]
SizeBytes = Annotated[int, _size[0], _size[1]]
ThroughputMBps = Annotated[float, _throughput[0], _throughput[1]]
