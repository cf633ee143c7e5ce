"""Lines of clock exchanges: there and back, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from laggard.core.clocks.clock_fit import ClockExchange
from laggard.core.errors import RunFolderError
from tests.core.clock_exchanges import any_exchange


@settings(deadline=None, derandomize=True)
@given(exchange=any_exchange)
def test_json_there_and_back(exchange: ClockExchange) -> None:
    line = exchange.to_json()
    assert "\n" not in line
    assert ClockExchange.from_json(line) == ClockExchange.from_json(line.encode()) == exchange


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("", "Expecting value"),
        ("[1, 2, 3", "Expecting"),
        ("[1, 2, 3]", "four whole numbers"),
        ("[1, 2, 3, 4.0]", "four whole numbers"),
        ("[1, 2, 3, true]", "four whole numbers"),
        ('{"sent_ns": 1}', "four whole numbers"),
        ("[5, 2, 3, 4]", "never runs backwards"),
        ("[1, 4, 3, 4]", "never runs backwards"),
        ("[1, 2, 3, 9223372036854775808]", "within"),
        (b"\xff\xfe[", "is not a clock exchange"),
    ],
)
def test_a_line_that_is_no_exchange_is_refused(line: str | bytes, why: str) -> None:
    with pytest.raises(RunFolderError, match=why):
        ClockExchange.from_json(line)
