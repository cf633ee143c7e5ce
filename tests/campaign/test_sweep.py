"""Campaigns: what is run, in which order it may resume, and what is refused."""

from __future__ import annotations

import csv
import itertools
import json
import os
import pickle
import sqlite3
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from laggard.campaign import sweep as campaigns
from laggard.campaign.campaign_state import open_campaign
from laggard.campaign.run_subprocess import SubprocessRun
from laggard.campaign.sweep import CampaignFile, Combination, format_combination, load_campaign
from laggard.core.errors import InputError
from laggard.scenario.load import load_scenario
from laggard.workloads.strategies.registry import STRATEGY_NAMES
from tests.command_line import Laggard, needs_tun
from tests.scenario.scenario_folders import REPOSITORY

FILE = """
scenario: small
repeats: 2
vary: {workload.seed: [1, 2]}
"""


def test_overrides_are_yaml_values() -> None:
    combination = Combination({"workload.seed": 2, "network.networks.0.delay": "5ms"}, 0)
    assert combination.overrides() == ('network.networks.0.delay="5ms"', "workload.seed=2")
    assert format_combination(combination, {"status": "failed"}).startswith(
        'network.networks.0.delay="5ms" · workload.seed=2'
    )


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("abc:#,'\" e1.", max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abe1", max_size=4), inner),
    max_leaves=8,
)  # fmt: skip


@given(JSON_VALUES)
def test_overrides_mean_the_same_in_both_versions_of_yaml(value: Any) -> None:
    ((text,),) = [Combination({"network.x": value}, 0).overrides()]
    written = text.removeprefix("network.x=")
    assert yaml.safe_load(written) == value
    assert YAML(typ="safe", pure=True).load(written) == value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("scenario: small\nrepeat: 2\n", "repeat"),
        ("repeats: 2\n", "scenario"),
        ("scenario: x\nrepeats: 0\n", "repeats"),
    ],
)
def test_what_is_no_campaign_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "campaign.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=says):
        load_campaign(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_campaign(tmp_path / "none.yaml")


def test_scenario_is_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "campaign.yaml").write_text(FILE)
    assert load_campaign(tmp_path / "campaign.yaml").scenario == (tmp_path / "small").resolve()


def combinations(campaign: CampaignFile) -> Iterator[Combination]:
    """All of them, with the first seed."""
    vary = {
        key: values[:1] if key == "workload.seed" else values
        for key, values in campaign.vary.items()
    }
    for values in itertools.product(*vary.values()):
        yield Combination(dict(zip(vary, values, strict=True)), 0)


def test_fog_versus_cloud_can_be_run() -> None:
    """Every combination is a scenario, with the server where it says, and nothing to be warned
    of."""
    campaign = load_campaign(REPOSITORY / "benchmarks/fog_versus_cloud.yaml")
    for combination in combinations(campaign):
        scenario = load_scenario(campaign.scenario, combination.overrides())
        assert scenario.warnings == ()
        assert scenario.workload.placement.server == combination.values["workload.placement.server"]
        assert [host.layer for host in scenario.ranks] == ["edge"] * 4


def test_accuracy_can_be_compared() -> None:
    """Every strategy there is takes part, on four equal machines."""
    campaign = load_campaign(REPOSITORY / "benchmarks/accuracy.yaml")
    names = set()
    for combination in combinations(campaign):
        scenario = load_scenario(campaign.scenario, combination.overrides())
        assert scenario.warnings == ()
        assert set(scenario.shares.values()) == {0.2}
        assert len(scenario.ranks) == 4
        names.add(scenario.workload.strategy.name)
    assert names == set(STRATEGY_NAMES)


def test_resumes_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends it during the third run leaves that one undone; started again, it does what is left
    and only that."""
    path = tmp_path / "campaign.yaml"
    path.write_text(FILE)
    started: list[Sequence[str]] = []

    def answer(_: Path, overrides: Sequence[str], _runs: Path, **_more: str) -> SubprocessRun:
        started.append(overrides)
        if len(started) == 3:
            raise KeyboardInterrupt
        return SubprocessRun(0, {"status": "done", "id": overrides[-1], "stragglers": []})

    monkeypatch.setattr(campaigns, "run_in_subprocess", answer)
    with pytest.raises(KeyboardInterrupt):
        campaigns.run_campaign(path, tmp_path / "runs", lambda _, __: None)
    table, failed = campaigns.run_campaign(path, tmp_path / "runs", lambda _, __: None)
    assert failed == 0
    assert len(started) == 5
    with table.open() as file:
        rows = [(row["workload.seed"], row["repeat"]) for row in csv.DictReader(file)]
    assert sorted(rows) == [("1", "0"), ("1", "1"), ("2", "0"), ("2", "1")]


@pytest.mark.parametrize("status", ["failed", "unfaithful"])
def test_what_was_not_done_is_tried_again_when_it_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    """And not before; the table keeps both."""
    path = tmp_path / "campaign.yaml"
    path.write_text("scenario: small\nvary: {workload.seed: [1, 2, 3]}\n")
    started: list[str] = []

    def answer(_: Path, overrides: Sequence[str], _runs: Path, **_more: str) -> SubprocessRun:
        started.append(overrides[-1])
        ends_so = overrides[-1] == "workload.seed=2" and started.count(overrides[-1]) == 1
        return SubprocessRun(0, {"status": status if ends_so else "done", "stragglers": []})

    monkeypatch.setattr(campaigns, "run_in_subprocess", answer)
    told = [
        campaigns.run_campaign(path, tmp_path / "runs", lambda _, __: None)[1] for _ in range(3)
    ]
    assert told == [1, 0, 0]
    assert len(started) == 4
    assert started[3] == "workload.seed=2"
    with (tmp_path / "runs/campaigns/campaign/results.csv").open() as file:
        assert sorted(
            (row["workload.seed"], row["status"]) for row in csv.DictReader(file)
        ) == sorted([("1", "done"), ("2", status), ("2", "done"), ("3", "done")])


def test_values_may_have_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A strategy with its parameters is set as it stands, and found again by a campaign that goes
    on."""
    path = tmp_path / "campaign.yaml"
    path.write_text(
        "scenario: small\nvary: {workload.strategy: [gossip, {name: local_sgd, steps: 8}]}\n"
    )
    started: list[str] = []

    def answer(_: Path, overrides: Sequence[str], _runs: Path, **_more: str) -> SubprocessRun:
        started.append(overrides[-1])
        return SubprocessRun(0, {"status": "done", "stragglers": []})

    monkeypatch.setattr(campaigns, "run_in_subprocess", answer)
    for _ in range(2):
        table, failed = campaigns.run_campaign(path, tmp_path / "runs", lambda _, __: None)
        assert failed == 0
    with_parts = '{"name": "local_sgd", "steps": 8}'
    assert sorted(started) == ['workload.strategy="gossip"', f"workload.strategy={with_parts}"]
    with table.open() as file:
        assert sorted(row["workload.strategy"] for row in csv.DictReader(file)) == [
            "gossip",
            with_parts,
        ]


def _run_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], Path]:
    """The last override of every run that a campaign makes, and its table."""
    started: list[str] = []

    def answer(_: Path, overrides: Sequence[str], _runs: Path, **_more: str) -> SubprocessRun:
        started.append(overrides[-1])
        return SubprocessRun(0, {"status": "done", "stragglers": []})

    monkeypatch.setattr(campaigns, "run_in_subprocess", answer)
    table, _ = campaigns.run_campaign(path, path.parent / "runs", lambda _, __: None)
    return started, table


class _Pickled:
    """What a pickle can do when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.path,)


def test_pickles_of_an_older_state_are_never_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The campaign begins again, and keeps the older table."""
    path = tmp_path / "campaign.yaml"
    path.write_text(FILE)
    folder = tmp_path / "runs/campaigns/campaign"
    (folder / "state").mkdir(parents=True)
    for name in ("sweeps", "done", "inprogress"):
        (folder / "state" / name).write_bytes(pickle.dumps(_Pickled(tmp_path / "executed")))
    (folder / "results.csv").write_text("old")
    started, table = _run_all(path, monkeypatch)
    assert len(started) == 4
    assert not (tmp_path / "executed").exists()
    assert (folder / "results_old.csv").read_text() == "old"
    assert len(table.read_text().splitlines()) == 5
    assert "is not read" in caplog.text


def _add_trigger(state: Path) -> None:
    with closing(sqlite3.connect(state)) as database, database:
        database.execute("CREATE TRIGGER t AFTER INSERT ON runs BEGIN DELETE FROM runs; END")


def _add_row(state: Path, combination: object, row: object) -> None:
    with closing(sqlite3.connect(state)) as database, database:
        database.execute("INSERT INTO runs (combination, row) VALUES (?, ?)", (combination, row))


ATTACKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda state: state.write_bytes(b""), "it is empty"),
    "no database": (lambda state: state.write_bytes(b"x" * 5000), "not a database"),
    "cut": (lambda state: state.write_bytes(state.read_bytes()[:4096]), "malformed|other tables"),
    "trigger": (_add_trigger, "other tables"),
    "number": (lambda state: _add_row(state, 1, "{}"), "not the state"),
    "bytes": (lambda state: _add_row(state, b"{}", "{}"), "not the state"),
    "no object": (lambda state: _add_row(state, "[]", "{}"), "not a JSON object"),
    "no repeat": (lambda state: _add_row(state, "{}", "{}"), "repeat"),
    "nested": (lambda state: _add_row(state, "[" * 100_000, "{}"), "not the state"),
    "pipe": (lambda state: (state.unlink(), os.mkfifo(state)), "a named pipe"),
    "folder": (lambda state: (state.unlink(), state.mkdir()), "a folder"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_damaged_state_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: str
) -> None:
    """Nothing is run, and the table stays."""
    path = tmp_path / "campaign.yaml"
    path.write_text(FILE)
    _, table = _run_all(path, monkeypatch)
    before = table.read_text()
    prepare, says = ATTACKS[attack]
    prepare(table.with_name("state.sqlite"))
    with pytest.raises(InputError, match=says):
        _run_all(path, monkeypatch)
    assert table.read_text() == before


@pytest.mark.parametrize("name", ["results.csv", "state.sqlite"])
def test_a_link_in_a_campaign_s_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = tmp_path / "campaign.yaml"
    path.write_text(FILE)
    _, table = _run_all(path, monkeypatch)
    mine = tmp_path / "mine"
    content = table.with_name(name).read_bytes()
    mine.write_bytes(content)
    table.with_name(name).unlink()
    table.with_name(name).symlink_to(mine)
    path.write_text(FILE.replace("repeats: 2", "repeats: 3"))
    with pytest.raises(InputError, match="a symbolic link"):
        _run_all(path, monkeypatch)
    assert mine.read_bytes() == content


def test_a_campaign_runs_once_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "campaign.yaml"
    path.write_text(FILE)
    folder = tmp_path / "runs/campaigns/campaign"
    folder.mkdir(parents=True)
    with open_campaign(folder), pytest.raises(InputError, match="another process"):
        _run_all(path, monkeypatch)
    assert len(_run_all(path, monkeypatch)[0]) == 4


def test_a_changed_campaign_keeps_its_older_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new key is a column of its own; what has been run is not run again."""
    path = tmp_path / "campaign.yaml"
    path.write_text(FILE)
    _run_all(path, monkeypatch)
    path.write_text(FILE.replace("[1, 2]", "[2, 3]"))
    started, table = _run_all(path, monkeypatch)
    assert started == ["workload.seed=3"] * 2
    path.write_text("scenario: small\nvary: {workload.stop.steps: [5]}\n")
    _run_all(path, monkeypatch)
    with table.open() as file:
        rows = [(row["workload.seed"], row["workload.stop.steps"]) for row in csv.DictReader(file)]
    assert rows == [*[("1", "")] * 2, *[("2", "")] * 2, *[("3", "")] * 2, ("", "5")]


@pytest.mark.long
@needs_tun
def test_runs_for_real(
    laggard: Laggard, make_scenario: Callable[..., Path], tmp_path: Path
) -> None:
    """The same seed gives the same losses, in the order in which the campaign says."""
    make_scenario()
    path = tmp_path / "campaign.yaml"
    path.write_text("scenario: small\nrepeats: 2\nvary: {workload.stop.steps: [12]}\n")
    process = laggard.start("campaign", str(path), "--fidelity", "record")
    out, errors = process.communicate(timeout=480)
    for repeat in range(2):
        assert f"workload.stop.steps=12 · repeat {repeat} ·" in out, errors
    listing = subprocess.run(
        [*laggard.command("runs", "--json"), "--runs", str(laggard.runs)],
        capture_output=True,
        text=True,
        check=True,
    )
    runs = json.loads(listing.stdout)
    assert [run["scenario"] for run in runs] == ["small", "small"]
    assert all(run["status"] in {"done", "unfaithful"} for run in runs)
    failed = any(run["status"] == "unfaithful" for run in runs)
    assert process.returncode == int(failed), errors
    first, second = (
        pq.read_table(Path(run["folder"]) / "steps.parquet", columns=["step", "rank", "loss"])
        for run in runs
    )
    assert len(first) == 36
    assert first.equals(second)
