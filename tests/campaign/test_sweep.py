"""Campaigns: what is run, in which order it may resume, and what is refused."""

from __future__ import annotations

import csv
import itertools
import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from laggard.campaign import sweep as campaigns
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
