"""Units of `network.yaml`: what E2Clab, EnOSlib and tc(8) together accept, with their meaning.

E2Clab passes the texts to EnOSlib, whose validator accepts rates that end in `kbit`, `mbit` or
`gbit` in lower case and losses with `%`. EnOSlib does not validate delays and passes all texts to
`tc`, which accepts no space between number and unit. `tc` reads a bare delay as microseconds.

A refusal gives every plausible reading. In `tc`, `10mbps` is 10 megabytes per second, which most
authors do not mean.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

from laggard.core.units import TIME_MS, format_rate, parse_rate_mbps

_LONGEST_TEXT = 64
_NUMBER = r"\+?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?"
_QUANTITY = re.compile(rf"(?P<number>{_NUMBER})(?P<space>\s*)(?P<unit>[A-Za-z%]*)", re.ASCII)
_ENOSLIB_LOSS = re.compile(r"\d*.?\d*%")
"""EnOSlib's format of a loss (`enoslib.service.emul.schema.is_valid_loss`)."""

_MOST_DELAY_MS = (2**32 - 1) * 64e-6
"""Longest delay of tc's netem, in ticks of 64 ns."""

_LEAST_RATE_MBPS = 8e-6
"""Lowest rate of tc's htb: one byte per second."""

_RATE_UNITS = ("kbit", "mbit", "gbit")


def parse_e2clab_delay_ms(value: object) -> float:
    """Parse a delay such as `10ms`, `0.5s` or `250us` to milliseconds; bare is microseconds."""
    rule = "a delay must be text with a number, directly followed by us, ms or s, such as 10ms"
    if _is_number(value):
        raise ValueError(f"{rule} — write {value}ms; tc would read the bare number as {value}us")
    quantity = _match(value)
    if quantity is None:
        raise ValueError(f"{rule} — {_suggest_delay(value)}")
    unit = quantity["unit"].lower()
    if unit and unit not in TIME_MS:
        raise ValueError(f"{rule} — write {quantity['number']}ms")
    if unit and quantity["space"]:
        raise ValueError(f"{rule} — write {quantity['number']}{unit}, without the space")
    delay_ms = float(quantity["number"]) * (TIME_MS[unit] if unit else 1e-3)
    if delay_ms > _MOST_DELAY_MS:
        raise ValueError(f"{rule}, and tc's limit is 274s — write a shorter delay")
    return delay_ms


def parse_e2clab_rate_mbps(value: object) -> float:
    """Parse a rate such as `100mbit` to Mbit/s."""
    rule = (
        "a rate must be text with a positive number, directly followed by kbit, mbit or gbit in"
        " lower case, such as 100mbit"
    )
    quantity = _match(str(value) if _is_number(value) else value)
    if quantity is None:
        raise ValueError(rule)
    number, unit = quantity["number"], quantity["unit"]
    if isinstance(value, str) and unit in _RATE_UNITS and not quantity["space"]:
        # EnOSlib compares the end of the text, so a space after the unit is refused.
        if not value.endswith(unit):
            raise ValueError(f"{rule} — remove the space at the end")
        rate = _read_as_tc(number, unit, rule)
        if rate < _LEAST_RATE_MBPS:
            raise ValueError(f"{rule}, and tc's lowest rate is 0.008kbit — write a higher rate")
        return rate
    read = _read_as_tc(number, unit, f"{rule} — write for example {number}mbit")
    raise ValueError(f"{rule} — {_suggest_rate(number, unit, read)}")


def parse_e2clab_loss_percent(value: object) -> float:
    """Parse a packet loss such as `5%` to percent, from 0 to 100."""
    rule = "a loss must be text with a percentage from 0% to 100%, such as 1%"
    quantity = _match(str(value) if _is_number(value) else value)
    if quantity is None:
        raise ValueError(f"{rule} — {_suggest_loss(value)}")
    number = quantity["number"]
    if quantity["unit"] != "%":
        share = f", or {100 * float(number):g}% if it is a fraction" if float(number) <= 1 else ""
        raise ValueError(f'{rule} — write "{number}%"{share}')
    if quantity["space"]:
        raise ValueError(f'{rule} — write "{number}%", without the space')
    if not number[0].isdigit():
        raise ValueError(f'{rule} — write "{float(number):.12g}%": tc needs a digit first')
    assert isinstance(value, str)
    if float(number) > 100 or not _ENOSLIB_LOSS.match(value):
        raise ValueError(rule)
    return float(number)


def _match(value: object) -> re.Match[str] | None:
    """Return number, space and unit of a text; None if it is not of this form."""
    # The length is checked first: hostile text must not occupy the expression.
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
        return None
    return _QUANTITY.fullmatch(value.strip())


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e18


def _read_as_tc(number: str, unit: str, rule: str) -> float:
    """Return a rate in Mbit/s as tc reads it."""
    try:
        return parse_rate_mbps(f"{float(number):.12f}{unit}")
    except ValueError as error:
        raise ValueError(rule) from error


def _suggest_delay(value: object) -> str:
    parts = value.split() if isinstance(value, str) and len(value) <= _LONGEST_TEXT else []
    if len(parts) > 1 and all(_match(part) for part in parts[:2]):
        return (
            f"write {parts[0]} here and, in heterogeneity.yaml, an entry with `jitter: {parts[1]}`:"
            " tc's jitter reorders packets, and Laggard's does not"
        )
    return "write for example 10ms"


def _suggest_loss(value: object) -> str:
    parts = value.split() if isinstance(value, str) and len(value) <= _LONGEST_TEXT else []
    if len(parts) > 1 and _match(parts[0]):
        return (
            f"write {parts[0]} here and, in heterogeneity.yaml, an entry with `burst:` for"
            " correlated losses"
        )
    return 'write for example "1%"'


def _suggest_rate(number: str, unit: str, read_mbps: float) -> str:
    """Return the fix for a rate that tc reads as `read_mbps` and EnOSlib refuses."""
    read = format_rate(read_mbps)
    if unit.lower() in _RATE_UNITS:
        return f"write {number}{unit.lower()}"
    if unit.lower().endswith("bps"):
        bits = format_rate(read_mbps / 8)
        return f"tc reads it as bytes per second: write {read}, or {bits} if it is in bits"
    if not unit:
        return f"tc would read the bare number as bits per second: write {read}, or {number}mbit"
    return f"write {read}"


def _quantity_type(parse: object, description: str, unit: str, example: str) -> tuple[object, ...]:
    schema = {
        "type": "string",
        "pattern": rf"^\s*\+?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?{unit}$",
        "description": description,
        "examples": [example],
    }
    return BeforeValidator(parse), WithJsonSchema(schema)  # type: ignore[arg-type]


_delay = _quantity_type(
    parse_e2clab_delay_ms,
    "one-way delay; a number without a unit is in microseconds, as in tc",
    r"([A-Za-z]*)\s*",
    "10ms",
)
_rate = _quantity_type(
    parse_e2clab_rate_mbps, "rate in kbit, mbit or gbit (lower case)", "[kmg]bit", "100mbit"
)
_loss = _quantity_type(
    parse_e2clab_loss_percent,
    "packet loss; each packet is lost independently, unless heterogeneity.yaml sets a burst length",
    r"%\s*",
    "1%",
)

E2clabDelayMs = Annotated[float, _delay[0], _delay[1]]
E2clabRateMbps = Annotated[float, _rate[0], _rate[1]]
E2clabLossPercent = Annotated[float, _loss[0], _loss[1]]
