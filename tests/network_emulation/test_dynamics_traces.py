"""Trace files."""

from __future__ import annotations

from pathlib import Path

import pytest

from laggard.core.errors import ScenarioError
from laggard.network_emulation.dynamics import parse_trace, read_traces
from laggard.network_emulation.model import Heterogeneity


def test_cells_become_values_and_empty_ones_leave_things_as_they_are() -> None:
    points = parse_trace(
        "seconds,delay_ms,rate_mbps,loss_percent\n0,10,5,0\n1.5,,2.5,\n\n", "t.csv"
    )
    assert [point.seconds for point in points] == [0.0, 1.5]
    assert points[0].values == (("delay_ms", 10.0), ("rate_mbps", 5.0), ("loss_percent", 0.0))
    assert points[1].values == (("rate_mbps", 2.5),)


def test_columns_may_be_fewer_and_in_any_order() -> None:
    assert parse_trace("rate_mbps, seconds\n5,0\n", "t.csv")[0].values == (("rate_mbps", 5.0),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"t\.csv:1:1"),
        ("seconds\n1\n", "must name the columns"),
        ("seconds,speed\n1,2\n", "must name the columns"),
        ("seconds,rate_mbps,rate_mbps\n1,2,3\n", "must name the columns"),
        ("seconds,rate_mbps\n", "at least one row"),
        ("seconds,rate_mbps\n0,5\n0,6\n", r"t\.csv:3:1: 0: seconds must increase"),
        ("seconds,rate_mbps\n0\n", "a row must have 2 cells"),
        ("seconds,rate_mbps\n0,fast\n", "rate_mbps must be a number from 0"),
        ("seconds,rate_mbps\n0,0\n", "rate_mbps must be greater than 0"),
        ("seconds,rate_mbps\n0,nan\n", "rate_mbps must be a number"),
        ("seconds,rate_mbps\n0,inf\n", "rate_mbps must be a number"),
        ("seconds,loss_percent\n0,101\n", "loss_percent must be a number from 0 to 100"),
        ("seconds,delay_ms\n-1,5\n", "seconds must be a number"),
    ],
)
def test_what_is_not_a_trace_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        parse_trace(text, "t.csv")


def _naming(name: str) -> Heterogeneity:
    return Heterogeneity.model_validate({"dynamic": [{"trace": name, "src": "a.*", "dst": "b.*"}]})


def test_traces_are_read_from_the_scenario_folder(tmp_path: Path) -> None:
    (tmp_path / "lte.csv").write_text("\ufeffseconds,delay_ms\n0,3\n", encoding="utf-8")
    assert read_traces(_naming("lte.csv"), tmp_path)["lte.csv"][0].values == (("delay_ms", 3.0),)


def test_a_missing_or_binary_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="cannot be read"):
        read_traces(_naming("lte.csv"), tmp_path)
    (tmp_path / "lte.csv").write_bytes(b"seconds,delay_ms\n0,\xff\n")
    with pytest.raises(ScenarioError, match="UTF-8"):
        read_traces(_naming("lte.csv"), tmp_path)
