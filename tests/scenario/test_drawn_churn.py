"""Lives of machines that are drawn from observed ones: `churn: {lifetimes: FILE}`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.hosts import Host
from laggard.core.revocation.lifetimes import Life, Lifetimes
from laggard.scenario.load import Scenario, load_scenario
from laggard.scenario.named_files.drawn_churn import draw_entries
from laggard.workloads.specification.churn import ChurnEntry, DrawnChurn, faults, turns
from tests.scenario.scenario_folders import problems_of, template, write
from tests.workloads.conftest import make_hosts

LIVES = Lifetimes(
    (
        Life(30.0),
        Life(60.0),
        Life(60.0, censored=True),
        Life(90.0),
        Life(200.0),
        Life(200.0, censored=True),
    )
)
CSV = "hours,censored\n0.5,0\n1,0\n2,1\n"


def draw(
    workers: Sequence[Host], seed: int = 1, horizon_s: float = 500.0, **options: object
) -> tuple[ChurnEntry, ...]:
    drawn = DrawnChurn.model_validate({"lifetimes": "lives.csv", **options})
    return tuple(draw_entries(drawn, LIVES, workers, workers, seed, horizon_s))


def test_first_lives_are_distributed_as_the_observed_ones() -> None:
    hosts = make_hosts(2000)
    first: dict[str, float] = {}
    for entry in draw(hosts, horizon_s=1e9):
        first.setdefault(entry.pattern, entry.at_s)
    # The last host stays, since somebody must train.
    ages = np.array(sorted(first.values()))
    for age_s in (29.0, 30.0, 60.0, 90.0, 150.0, 250.0, 400.0):
        expected = float(LIVES.survival(age_s))
        # Four standard deviations of a share of 2000.
        assert (ages > age_s).mean() == pytest.approx(expected, abs=0.045)


def test_the_lives_of_a_host_depend_on_the_seed_and_its_name_alone() -> None:
    few, many = make_hosts(3), make_hosts(6)
    own = few[1].name

    def list_turns(hosts: Sequence[Host], seed: int) -> list[tuple[float, str]]:
        found = draw(hosts, seed, back_after="5s")
        return [(each.at_s, each.key) for each in found if each.pattern == own]

    assert list_turns(many, 1) == list_turns(many, 1)
    assert list_turns(many, 1)[0] == list_turns(few, 1)[0]
    assert list_turns(many, 1) != list_turns(many, 2)


def test_faster_lives_are_shorter_in_proportion() -> None:
    hosts = make_hosts(4)
    usual = draw(hosts, horizon_s=1000.0)
    fast = draw(hosts, horizon_s=100.0, faster=10.0)
    assert [each.at_s for each in fast] == pytest.approx([each.at_s / 10 for each in usual])
    assert [each.pattern for each in fast] == [each.pattern for each in usual]


def test_a_new_machine_joins_after_the_given_time() -> None:
    left: dict[str, float] = {}
    entries = draw(make_hosts(4), back_after="7s")
    for each in entries:
        if each.joins is None:
            left[each.pattern] = each.at_s
        else:
            assert each.at_s == left.pop(each.pattern) + 7.0
    assert len(entries) > 8


@given(
    count=st.integers(1, 6),
    seed=st.integers(0, 10_000),
    back_after=st.none() | st.floats(0.0, 100.0),
    hosts=st.sampled_from(["*", "edge.*", "edge.trainer.1.1"]),
)
def test_every_turn_is_possible_and_somebody_always_trains(
    count: int, seed: int, back_after: float | None, hosts: str
) -> None:
    workers = make_hosts(count)
    options = {} if back_after is None else {"back_after": back_after}
    entries = draw(workers, seed, hosts=hosts, **options)
    assert list(faults(turns(entries, workers, workers), workers)) == []
    assert [each.at_s for each in entries] == sorted(each.at_s for each in entries)


def load(folder: Path, churn: str) -> Scenario:
    write(folder, template())
    (folder / "lives.csv").write_text(CSV)
    return load_scenario(folder, ["workload.strategy=asynchronous", f"workload.churn={churn}"])


def test_a_scenario_has_the_drawn_entries_and_keeps_the_file(tmp_path: Path) -> None:
    churn = '{lifetimes: lives.csv, hosts: "edge.*", faster: 60, back_after: 20s}'
    scenario = load(tmp_path / "drawn", churn)
    entries = scenario.workload.churn_entries
    assert entries
    assert {each.pattern.partition(".")[0] for each in entries} == {"edge"}
    assert all(each.at_s < (scenario.workload.stop.time_s or 0) for each in entries)
    assert scenario.files()["lives.csv"] == CSV.encode()
    # The copy in a run folder is the same scenario.
    copy = tmp_path / "copy"
    copy.mkdir()
    for name, data in scenario.files().items():
        (copy / name).write_bytes(data)
    assert load_scenario(copy).workload.churn_entries == entries
    other = load(tmp_path / "other", churn.replace("60", "61"))
    assert other.workload.churn_entries != entries


@pytest.mark.parametrize(
    ("churn", "content", "rule"),
    [
        ("{lifetimes: lives.csv}", None, "the file is missing"),
        ("{lifetimes: ../lives.csv}", CSV, "inside the scenario folder"),
        ("{lifetimes: lives.csv}", "hours\nsoon\n", "is no number of hours"),
        ("{lifetimes: lives.csv}", "hours,censored\n1,1\n", "none of 1 lives ended"),
        ("{lifetimes: lives.csv, hosts: nobody}", CSV, "matches no host"),
        ("{lifetimes: lives.csv, faster: 0}", CSV, "must be greater than 0"),
        ("{lifetimes: lives.csv, back_after: 1ms, faster: 100000}", CSV, "more than 1000"),
        ("{lifetime: lives.csv}", CSV, "unknown key"),
    ],
)
def test_what_is_wrong_is_said_at_its_place(
    tmp_path: Path, churn: str, content: str | None, rule: str
) -> None:
    folder = write(tmp_path / "wrong", template())
    if content is not None:
        (folder / "lives.csv").write_text(content)
    found = problems_of(folder, "workload.strategy=asynchronous", f"workload.churn={churn}")
    assert any(rule in f"{each.rule} {each.fix}" for each in found), found


def test_lives_do_not_change_what_needs_every_worker(tmp_path: Path) -> None:
    folder = write(tmp_path / "lockstep", template())
    (folder / "lives.csv").write_text(CSV)
    (problem,) = problems_of(
        folder, "workload.strategy=allreduce", "workload.churn={lifetimes: lives.csv, faster: 100}"
    )
    assert "every worker takes part in collectives" in problem.rule
