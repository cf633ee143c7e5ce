"""Quantities as people write them, parsed once into numbers whose names carry the unit.

These are the quantities of Laggard's own files. Units of rates and delays are those of `tc(8)`, and
the unit is mandatory: without one, `tc` reads a delay in microseconds and a rate in bits per
second. `network.yaml` has E2Clab's stricter units (`network_emulation/e2clab_units.py`).

Each parser takes text, or a number if the unit is optional. It raises a `ValueError` whose message
gives the rule and an example. The models of the rooms use the `Annotated` types at the end.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

_LONGEST_TEXT = 64
_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
TIME_MS: Mapping[str, float] = {
    "us": 1e-3, "usec": 1e-3, "usecs": 1e-3, "ms": 1.0, "msec": 1.0, "msecs": 1.0, "s": 1e3,
    "sec": 1e3, "secs": 1e3,
}  # fmt: skip
# In tc's notation, units that end in `bit` count bits per second, and units in `bps` count bytes.
# The latter are not accepted in files, since most authors of `10mbps` mean bits.
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
    """Return text unchanged, and a bare number (not true or false) in plain decimals."""
    if isinstance(value, str):
        return value
    # Plain decimals, because the expression for numbers has no exponent.
    plain = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18
    return f"{value:.12f}" if plain else ""


def _match_bounded(expression: str, text: str) -> re.Match[str] | None:
    # The length is checked before the expression runs: hostile text must not make it backtrack for
    # minutes.
    return re.fullmatch(expression, text.strip(), re.ASCII) if len(text) <= _LONGEST_TEXT else None


def parse_delay_ms(value: object) -> float:
    """Parse a delay in tc's notation, such as `10ms`, `0.5s` or `250us`, to milliseconds."""
    return _parse_quantity(
        value, TIME_MS, 1e-3, "a delay must be a number followed by us, ms or s, such as 10ms"
    )


def parse_delay_with_unit_ms(value: object) -> float:
    """Parse a delay such as `10ms`, `0.5s` or `250us` to milliseconds; the unit is mandatory."""
    return _parse_quantity(
        value, TIME_MS, None, "a delay must be a number with the unit us, ms or s, such as 10ms"
    )


def parse_rate_with_unit_mbps(value: object) -> float:
    """Parse a positive rate such as `100mbit` or `1gbit` to Mbit/s; the unit is mandatory."""
    rule = "a rate must be a positive number with the unit kbit, mbit or gbit, such as 100mbit"
    rate = _parse_quantity(value, _RATE_MBPS, None, rule)
    if rate <= 0:
        raise ValueError(rule)
    if isinstance(value, str) and value.strip().lower().endswith("bps"):
        bits, read = format_rate(rate / 8), format_rate(rate)
        raise ValueError(
            f"{rule} — tc reads it as bytes per second: write {read}, or {bits} if it is in bits"
        )
    return rate


def format_rate(mbps: float) -> str:
    """Return a rate in the largest of kbit, mbit and gbit that gives at least 1."""
    unit, scale = next(
        ((unit, scale) for unit, scale in (("gbit", 1e3), ("mbit", 1.0)) if mbps >= scale),
        ("kbit", 1e-3),
    )
    return f"{mbps / scale:.12g}{unit}"


def parse_latency_ms(value: object) -> float:
    """Parse a latency such as `5ms`, `200us` or `1s` to milliseconds; the unit is mandatory."""
    return _parse_quantity(
        value, TIME_MS, None, "a latency must be a number with the unit us, ms or s, such as 5ms"
    )


def parse_rate_mbps(value: object) -> float:
    """Parse a positive rate in tc's notation, such as `100mbit` or `1gbit`, to Mbit/s."""
    rule = "a rate must be a positive number followed by kbit, mbit or gbit, such as 100mbit"
    rate = _parse_quantity(value, _RATE_MBPS, 1e-6, rule)
    if rate <= 0:
        raise ValueError(rule)
    return rate


def parse_loss_percent(value: object) -> float:
    """Parse a packet loss such as `5%` to percent, from 0 to 100."""
    return _parse_percent(value, 100.0, "a loss must be a percentage from 0% to 100%, such as 1%")


def parse_share(value: object) -> float:
    """Parse a CPU share such as `25%` to a fraction of one core, above zero and at most one."""
    rule = "a cpu share must be a percentage of one core, above 0% and at most 100%, such as 25%"
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
    """Parse a duration such as `10s`, `5min`, `1h`, or a bare number of seconds, to seconds."""
    return _parse_quantity(
        value,
        _DURATION_S,
        1.0,
        "a duration must be a number (0 or more) followed by s, min or h, such as 10s",
    )


def parse_size_bytes(value: object) -> int:
    """Parse a positive size such as `1GiB` or `512MB` to bytes; the unit is mandatory."""
    rule = (
        "a size must be a positive number with the unit kB, MB, GB, KiB, MiB or GiB, such as 1GiB"
    )
    size = _parse_quantity(value, _BYTES, None, rule)
    if size < 1:
        raise ValueError(rule)
    return int(size)


def parse_throughput_mb_per_s(value: object) -> float:
    """Parse a positive storage throughput such as `20MB/s` to MB/s (10^6 bytes)."""
    rule = "a throughput must be a positive number with the unit kB/s, MB/s or GB/s, such as 20MB/s"
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
    """Return the validator of a quantity and its JSON Schema.

    `ending` is a regular expression for the text after the number.
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


_latency = _make_quantity_type(
    parse_latency_ms, "additional time of every access", "[A-Za-z]+", "5ms", bare=False
)
_delay_with_unit = _make_quantity_type(
    parse_delay_with_unit_ms, "one-way delay", "[A-Za-z]+", "10ms", bare=False
)
_rate_with_unit = _make_quantity_type(
    parse_rate_with_unit_mbps, "rate", "[A-Za-z]*[bB][iI][tT]", "100mbit", bare=False
)
_loss = _make_quantity_type(
    parse_loss_percent,
    "packet loss; each packet is lost independently, unless heterogeneity.yaml sets a burst length",
    "%",
    "1%",
    bare=False,
)
_share = _make_quantity_type(
    parse_share, "CPU speed as a percentage of one core", "%", "25%", bare=False
)
_duration = _make_quantity_type(
    parse_duration_s,
    "duration; a number without a unit is in seconds",
    "[A-Za-z]*",
    "10s",
    "5min",
)
_size = _make_quantity_type(
    parse_size_bytes, "amount of data, with its unit", "[A-Za-z]+", "1GiB", bare=False
)
_throughput = _make_quantity_type(
    parse_throughput_mb_per_s, "storage throughput", "[A-Za-z]+/[sS]", "20MB/s", bare=False
)

LatencyMs = Annotated[float, _latency[0], _latency[1]]
DelayWithUnitMs = Annotated[float, _delay_with_unit[0], _delay_with_unit[1]]
RateWithUnitMbps = Annotated[float, _rate_with_unit[0], _rate_with_unit[1]]
LossPercent = Annotated[float, _loss[0], _loss[1]]
Share = Annotated[float, _share[0], _share[1]]
DurationS = Annotated[float, _duration[0], _duration[1]]
SizeBytes = Annotated[int, _size[0], _size[1]]
ThroughputMBps = Annotated[float, _throughput[0], _throughput[1]]
