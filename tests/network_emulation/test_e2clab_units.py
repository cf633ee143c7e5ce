"""Units of `network.yaml`: a table, and E2Clab's schema, EnOSlib's validator and tc as oracles."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.network_emulation.e2clab_units import (
    parse_e2clab_delay_ms,
    parse_e2clab_loss_percent,
    parse_e2clab_rate_mbps,
)


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        (parse_e2clab_delay_ms, "10ms", 10.0),
        (parse_e2clab_delay_ms, "0.5S", 500.0),
        (parse_e2clab_delay_ms, "250usecs ", 0.25),
        (parse_e2clab_delay_ms, "1000", 1.0),
        (parse_e2clab_delay_ms, "1e3us", 1.0),
        (parse_e2clab_rate_mbps, "100mbit", 100.0),
        (parse_e2clab_rate_mbps, " 1gbit", 1000.0),
        (parse_e2clab_rate_mbps, ".5kbit", 0.0005),
        (parse_e2clab_rate_mbps, "1e1mbit", 10.0),
        (parse_e2clab_loss_percent, "5%", 5.0),
        (parse_e2clab_loss_percent, "0.5%", 0.5),
        (parse_e2clab_loss_percent, "0%", 0.0),
    ],
)
def test_means_what_tc_means(parse: Callable[[object], float], text: str, expected: float) -> None:
    assert parse(text) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("parse", "value", "fix"),
    [
        (parse_e2clab_rate_mbps, "10mbps", "write 80mbit, or 10mbit if it is in bits"),
        (parse_e2clab_rate_mbps, "10Mbit", "write 10mbit"),
        (parse_e2clab_rate_mbps, "10 mbit", "write 10mbit"),
        (parse_e2clab_rate_mbps, "10mbit ", "remove the space at the end"),
        (parse_e2clab_rate_mbps, "1tbit", "write 1000gbit"),
        (parse_e2clab_rate_mbps, "10mibit", "write 10.48576mbit"),
        (parse_e2clab_rate_mbps, "2500bit", "write 2.5kbit"),
        (parse_e2clab_rate_mbps, "10", "bits per second: write 0.01kbit, or 10mbit"),
        (parse_e2clab_rate_mbps, 10, "bits per second: write 0.01kbit, or 10mbit"),
        (parse_e2clab_rate_mbps, "10furlongs", "write for example 10mbit"),
        (parse_e2clab_rate_mbps, "0.001kbit", "lowest rate"),
        (parse_e2clab_delay_ms, 10, "write 10ms; tc would read the bare number as 10us"),
        (parse_e2clab_delay_ms, "10 ms", "write 10ms, without the space"),
        (parse_e2clab_delay_ms, "10min", "write 10ms"),
        (parse_e2clab_delay_ms, "300s", "limit is 274s"),
        (parse_e2clab_delay_ms, "10ms 2ms", "an entry with `jitter: 2ms`"),
        (parse_e2clab_loss_percent, "5", 'write "5%"'),
        (parse_e2clab_loss_percent, 0.05, 'write "0.05%", or 5% if it is a fraction'),
        (parse_e2clab_loss_percent, ".5%", 'write "0.5%"'),
        (parse_e2clab_loss_percent, "5 %", 'write "5%", without the space'),
        (parse_e2clab_loss_percent, "5% 25%", "an entry with `burst:`"),
    ],
)
def test_a_refusal_has_every_reading(
    parse: Callable[[object], float], value: object, fix: str
) -> None:
    with pytest.raises(ValueError, match="such as") as caught:
        parse(value)
    assert fix in str(caught.value)


PARSERS = (parse_e2clab_delay_ms, parse_e2clab_rate_mbps, parse_e2clab_loss_percent)


@pytest.mark.parametrize("parse", PARSERS)
@given(value=st.one_of(st.text(), st.integers(), st.floats(), st.none(), st.booleans()))
def test_any_value_is_a_number_or_refused_with_an_example(
    parse: Callable[[object], float], value: object
) -> None:
    try:
        result = parse(value)
    except ValueError as error:
        said = str(error)
    else:
        said = "such as" if result >= 0 else f"{result}"
    assert "such as" in said


def _tc_accepts(*arguments: str) -> bool:
    """Return whether tc accepts arguments; it parses them before it finds no such device."""
    done = subprocess.run(
        ["tc", arguments[0], "add", "dev", "laggard-none", *arguments[1:]],
        capture_output=True,
        text=True,
        check=False,
    )
    return "Cannot find device" in done.stderr


def _deploys(delay: str, rate: str, loss: str) -> bool:
    """Return whether E2Clab's schema, EnOSlib and tc accept the three texts of a rule."""
    from e2clab.schemas.network_schema import NetworkValidator
    from enoslib.service.emul.htb import HTBConstraint
    from jsonschema import ValidationError

    rule = {"src": "a", "dst": "b", "delay": delay, "rate": rate, "loss": loss}
    try:
        NetworkValidator.validate({"networks": [rule]})
        HTBConstraint("eth0", delay, "10.0.0.1", rate, loss)
    except ValidationError:
        return False
    netem = ["delay", *delay.split(), "loss", *loss.split()]
    return _tc_accepts("qdisc", "root", "netem", *netem) and _tc_accepts(
        "class", "parent", "1:", "classid", "1:1", "htb", "rate", *rate.split()
    )


def _accepted(delay: str, rate: str, loss: str) -> bool:
    try:
        parse_e2clab_delay_ms(delay)
        parse_e2clab_rate_mbps(rate)
        parse_e2clab_loss_percent(loss)
    except ValueError:
        return False
    return True


NUMBERS = st.sampled_from(
    ["10", "0", "1.5", ".5", "5.", "1e1", "1e-2", "+3", "007", "101", "x", ""]
)
SPACES = st.sampled_from(["", "", "", " "])
TIMES = st.sampled_from(["ms", "us", "s", "", "MS", "usec", "msecs", "secs", "ns", "m", "min"])
RATES = st.sampled_from(
    ["mbit", "kbit", "gbit", "mbit", "bit", "Mbit", "MBIT", "mbps", "tbit", "mibit", "", "%", "mb"]
)
PERCENTS = st.sampled_from(["%", "%", "%", "", "%%", "pct"])


@st.composite
def _text(draw: st.DrawFn, units: st.SearchStrategy[str]) -> str:
    return f"{draw(SPACES)}{draw(NUMBERS)}{draw(SPACES)}{draw(units)}{draw(SPACES)}"


@pytest.mark.skipif(shutil.which("tc") is None, reason="tc is the oracle")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("varied", ["delay", "rate", "loss"])
@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_text_is_accepted_if_and_only_if_e2clab_deploys_it(
    varied: str, data: st.DataObject
) -> None:
    units = {"delay": TIMES, "rate": RATES, "loss": PERCENTS}[varied]
    texts = {"delay": "10ms", "rate": "10mbit", "loss": "5%"} | {varied: data.draw(_text(units))}
    assert _accepted(**texts) == _deploys(**texts), texts
