"""Times of availability from a CSV file: who is present when, against the intervals themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.errors import InputError, LaggardError
from laggard.scenario.load import load_scenario
from laggard.scenario.named_files.recorded_churn import Interval, list_entries, parse_availability
from laggard.workloads.specification.churn import absent_at_start, turns
from tests.virtual.federated_scenario import SHARES, write_federated
from tests.workloads.conftest import make_hosts

HOSTS = make_hosts(3)
NAMES = [host.name for host in HOSTS]


@st.composite
def intervals(draw: st.DrawFn) -> Sequence[Interval]:
    """At least one interval, in order; some touch, and the last one may have no end."""
    ends = sorted(draw(st.lists(st.integers(0, 200), min_size=2, max_size=8, unique=True)))
    if len(ends) % 2:
        ends.append(10**9)
    pairs = [(float(a), float(b)) for a, b in zip(ends[::2], ends[1::2], strict=True)]
    if draw(st.booleans()) and pairs[-1][1] < 10**9:
        pairs.append((pairs[-1][1], pairs[-1][1] + 7))
    return pairs


@given(
    st.dictionaries(st.sampled_from(NAMES), intervals(), min_size=1),
    st.integers(1, 150),
    st.data(),
)
def test_hosts_are_present_within_their_intervals(
    available: Mapping[str, Sequence[Interval]], horizon_s: int, data: st.DataObject
) -> None:
    planned = turns(list_entries(available, horizon_s), HOSTS, HOSTS)
    now_s = data.draw(st.floats(0, horizon_s, exclude_max=True))
    present = {*NAMES} - absent_at_start(planned)
    for turn in planned:
        if turn.at_s <= now_s:
            assert (turn.host in present) != turn.joins, "nobody joins or leaves twice"
            (present.add if turn.joins else present.remove)(turn.host)
    expected = {
        name
        for name in NAMES
        if name not in available or any(a <= now_s < b for a, b in available[name])
    }
    assert present == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("host,until\n", "a.csv:1: the columns are host, until, and host, from, until must be"),
        ("host,from,until\nedge.trainer.1.9,0,1\n", "a.csv:2: no worker is on a host 'edge.t"),
        ("host,from,until\nedge.trainer.1.1,5,5\n", "a.csv:2: until 5 is not after from 5"),
        ("host,from,until\nedge.trainer.1.1,soon,5\n", "a.csv:2: 'soon' is no time"),
        ("host,from,until\nedge.trainer.1.1,nan,5\n", "a.csv:2: 'nan' is no time"),
        ("host,from,until\nedge.trainer.1.1,-1,5\n", "a.csv:2: '-1' is no time"),
        (
            "host,from,until\nedge.trainer.1.1,3,9\nedge.trainer.1.1,0,5\n",
            "a.csv: two intervals of edge.trainer.1.1 overlap at 3 s",
        ),
    ],
)
def test_a_wrong_file_says_where(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_availability(text.encode(), "a.csv", NAMES)
    assert message in str(caught.value)


def test_too_many_turns_are_refused() -> None:
    many = {NAMES[0]: [(2.0 * i + 1, 2.0 * i + 2) for i in range(50_001)]}
    with pytest.raises(InputError, match="100002 arrivals and departures within 200000 s"):
        list_entries(many, 200_000)


def write_recorded(folder: Path, text: str) -> Path:
    changes = {"churn": {"availability": "a.csv"}, "stop": {"steps": 4, "time": "90s"}}
    write_federated(folder, changes)
    (folder / "a.csv").write_text(f"host,from,until\n{text}")
    return folder


def test_a_scenario_has_the_turns_of_its_file(tmp_path: Path) -> None:
    text = "edge.client.1.1,10,20\nedge.client.1.1,20,30\nedge.client.1.2,0,\nedge.client.1.3,95,\n"
    scenario = load_scenario(write_recorded(tmp_path / "scenario", text))
    found = [(each.at_s, each.joins, each.leaves) for each in scenario.workload.churn_entries]
    assert found == [
        (10.0, "edge.client.1.1", None),
        (30.0, None, "edge.client.1.1"),
        (95.0, "edge.client.1.3", None),
    ]
    assert not [line for line in scenario.warnings if "no effect" in line]
    assert "a.csv" in scenario.files()


def test_a_time_without_any_worker_is_told(tmp_path: Path) -> None:
    text = "".join(f"edge.client.1.{n},0,{10 * n}\n" for n in range(1, len(SHARES) + 1))
    folder = write_recorded(tmp_path / "scenario", text)
    with pytest.raises(LaggardError, match="no worker is left to train at 40 s"):
        load_scenario(folder)
    (folder / "a.csv").unlink()
    with pytest.raises(LaggardError, match="put the availability file"):
        load_scenario(folder)
