"""Arrivals that are drawn, and those of files."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.errors import InputError
from laggard.core.serving.arrivals import draw_arrivals, read_arrivals


def test_drawn_gaps_are_exponential() -> None:
    gaps = np.diff(draw_arrivals(4.0, 20_000, (1, 2)))
    assert gaps.mean() == pytest.approx(0.25, rel=0.03)
    assert gaps.std() == pytest.approx(0.25, rel=0.03)
    assert draw_arrivals(4.0, 10, (1, 2)) == draw_arrivals(4.0, 10, (1, 2))
    assert draw_arrivals(4.0, 10, (1, 2)) != draw_arrivals(4.0, 10, (1, 3))


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_a_file_is_read_as_it_is(times: list[float]) -> None:
    text = "seconds,note\n" + "".join(f"{each!r},x\n" for each in sorted(times))
    assert read_arrivals(text.encode(), "a.csv") == tuple(sorted(times))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the first line must begin with `seconds`"),
        ("time\n1\n", "the first line must begin with `seconds`"),
        ("seconds\n", "0 requests"),
        ("seconds\n1\nnan\n", "a.csv:3: 'nan' is no time of at least 1 s"),
        ("seconds\n2\n1\n", "a.csv:3: '1' is no time of at least 2 s"),
        ("seconds\n-1\n", "a.csv:2: '-1' is no time of at least 0 s"),
        ("seconds\ninf\n", "a.csv:2: 'inf' is no time"),
        ("seconds\nsoon\n", "a.csv:2: 'soon' is no time"),
    ],
)
def test_a_damaged_file_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        read_arrivals(text.encode(), "a.csv")
