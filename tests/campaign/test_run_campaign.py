"""Campaigns: their promises, what they refuse, and what a killed one leaves."""

from __future__ import annotations

import csv
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from laggard.campaign import run_campaign as module
from laggard.campaign.campaign_file import CampaignFile, StopRules, load_campaign
from laggard.campaign.campaign_state import Attempt, open_campaign, read_campaign
from laggard.campaign.cells import CellSetup, list_setups
from laggard.campaign.stop_rules import find_stop_reason
from laggard.core.campaign_columns import FIXED_COLUMNS
from laggard.core.errors import InputError, OutputError
from laggard.scenario.load import load_scenario
from laggard.workloads.strategies.registry import list_whole_model_strategies
from tests.campaign.campaign_folders import DONE, CampaignFolder, campaign
from tests.command_line import Laggard, needs_tun
from tests.scenario.scenario_folders import REPOSITORY

__all__ = ["campaign"]

FILE = """
scenario: small
repeats: 2
vary: {workload.batch_size: [96, 48]}
"""


def read_rows(table: Path) -> list[dict[str, str]]:
    """The rows of a results table."""
    with table.open(newline="") as file:
        return list(csv.DictReader(file))


def _add_trigger(state: Path) -> None:
    with closing(sqlite3.connect(state)) as database, database:
        database.execute(
            "CREATE TRIGGER t AFTER INSERT ON attempts BEGIN DELETE FROM attempts; END"
        )


def _add_attempt(state: Path, status: object, row: object) -> None:
    with closing(sqlite3.connect(state)) as database, database:
        database.execute(
            "INSERT INTO attempts (digest, token, status, row) VALUES ('a', 'b', ?, ?)",
            (status, row),
        )


def _describe_cell(state: Path, description: object) -> None:
    with closing(sqlite3.connect(state)) as database, database:
        database.execute("UPDATE cells SET description = ?", (description,))


ATTACKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda state: state.write_bytes(b""), "it is empty"),
    "no database": (lambda state: state.write_bytes(b"x" * 5000), "not a database"),
    "cut": (lambda state: state.write_bytes(state.read_bytes()[:4096]), "malformed|other tables"),
    "trigger": (_add_trigger, "other tables"),
    "bytes": (lambda state: _add_attempt(state, "done", b"\xff"), "not the state"),
    "no object": (lambda state: _add_attempt(state, "done", "[]"), "not the state"),
    "parts": (lambda state: _add_attempt(state, "done", '{"a": {"b": 1}}'), "not the state"),
    "nested": (lambda state: _add_attempt(state, "done", "[" * 100_000), "not the state"),
    "description": (lambda state: _describe_cell(state, "{}"), "not the state"),
    "no description": (lambda state: _describe_cell(state, None), "not the state"),
    "pipe": (lambda state: (state.unlink(), os.mkfifo(state)), "a named pipe"),
    "folder": (lambda state: (state.unlink(), state.mkdir()), "a folder"),
}


def list_first_seed(campaign: CampaignFile) -> Sequence[CellSetup]:
    """All setups with the first seed."""
    if "workload.seed" not in campaign.vary:
        return list_setups(campaign)
    first = {**campaign.vary, "workload.seed": campaign.vary["workload.seed"][:1]}
    return list_setups(campaign.model_copy(update={"vary": first}))


def test_fog_versus_cloud_can_be_run() -> None:
    """Every combination is a scenario, with the server where it says, and nothing to be warned
    of."""
    campaign = load_campaign(REPOSITORY / "experiments/fog_versus_cloud/fog_versus_cloud.yaml")
    for setup in list_first_seed(campaign):
        scenario = load_scenario(setup.scenario, setup.overrides())
        assert scenario.warnings == ()
        assert scenario.workload.placement.server == setup.varied["workload.placement.server"]
        assert [host.layer for host in scenario.ranks] == ["edge"] * 4


@pytest.mark.parametrize(("name", "setups"), [("architectures", 32), ("scale", 10)])
def test_studies_can_be_run(name: str, setups: int) -> None:
    """Every setup is a scenario, its training ends after a time, and nothing is to be warned of."""
    found = list_first_seed(load_campaign(REPOSITORY / f"experiments/{name}/{name}.yaml"))
    assert len(found) == setups
    for setup in found:
        scenario = load_scenario(setup.scenario, setup.overrides())
        assert scenario.warnings == ()
        assert scenario.workload.stop.time_s is not None


def test_accuracy_can_be_compared() -> None:
    """Every strategy there is takes part, on four equal machines."""
    campaign = load_campaign(REPOSITORY / "benchmarks/accuracy.yaml")
    names = set()
    for setup in list_first_seed(campaign):
        scenario = load_scenario(setup.scenario, setup.overrides())
        assert scenario.warnings == ()
        assert set(scenario.shares.values()) == {0.2}
        assert len(scenario.ranks) == 4
        names.add(scenario.workload.strategy.name)
    assert names == set(list_whole_model_strategies())


class Killed(BaseException):
    """The campaign's process is gone."""


def test_resumes_where_it_stopped(campaign: CampaignFolder) -> None:
    """A signal in the third run leaves it undone; the next call runs what is left, and only
    that."""

    def answer(number: int, _: Sequence[str]) -> Mapping[str, object]:
        if number == 3:
            raise KeyboardInterrupt
        return DONE

    campaign.answer = answer
    with pytest.raises(KeyboardInterrupt):
        campaign.run(FILE)
    result = campaign.run()
    assert (result.progress.done, result.progress.failed, len(campaign.started)) == (4, 0, 5)
    rows = [(row["workload.batch_size"], row["repeat"]) for row in read_rows(result.table)]
    assert sorted(rows) == [("48", "0"), ("48", "1"), ("96", "0"), ("96", "1")]


@pytest.mark.parametrize("moment", range(1, 12))
def test_killed_at_any_write_nothing_is_lost_or_done_twice(
    campaign: CampaignFolder, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """Killed before its n-th write of the state, it finds again the runs that had ended."""
    from laggard.campaign.campaign_state import CampaignState

    finished: dict[str, str] = {}
    writes = 0
    original = CampaignState._write

    def write(state: CampaignState) -> None:
        nonlocal writes
        writes += 1
        if writes == moment:
            raise Killed
        original(state)

    def answer(_: int, __: Sequence[str]) -> Mapping[str, object]:
        token = campaign.commands[-1][1].removeprefix("--cell=")
        finished[token] = token
        return {**DONE, "id": token}

    campaign.answer = answer
    monkeypatch.setattr(CampaignState, "_write", write)
    monkeypatch.setattr(
        module, "find_run_of", lambda token, _: {**DONE, "id": token} if token in finished else None
    )
    for _ in range(2):
        try:
            result = campaign.run(FILE)
        except Killed:
            continue
    assert len(campaign.started) == 4
    rows = read_rows(result.table)
    assert {row["run"] for row in rows} == set(finished)
    assert [row["status"] for row in rows] == ["done"] * 4


@pytest.mark.parametrize("status", ["failed", "unfaithful"])
def test_what_was_not_done_is_tried_again_when_it_is_started_again(
    campaign: CampaignFolder, status: str
) -> None:
    """And not before; the table keeps both attempts, with the reason."""

    def answer(number: int, _: Sequence[str]) -> Mapping[str, object]:
        return {**DONE, "status": status, "error": "no luck"} if number == 2 else DONE

    campaign.answer = answer
    text = "scenario: small\nvary: {workload.batch_size: [96, 48, 24]}\n"
    assert [campaign.run(text).progress.failed for _ in range(3)] == [1, 0, 0]
    assert len(campaign.started) == 4
    rows = read_rows(campaign.state / "results.csv")
    assert [(row["attempt"], row["status"], row["reason"]) for row in rows] == [
        ("1", "done", ""),
        ("1", status, "no luck"),
        ("1", "done", ""),
        ("2", "done", ""),
    ]


def test_retries_are_attempts_of_one_call(campaign: CampaignFolder) -> None:
    campaign.answer = lambda number, _: {**DONE, "status": "failed"} if number < 3 else DONE
    result = campaign.run("scenario: small\nretries: 1\nrepeats: 2\n")
    assert (result.progress.done, result.progress.failed) == (1, 1)
    assert len(campaign.started) == 3


def test_two_files_are_two_campaigns(campaign: CampaignFolder, tmp_path: Path) -> None:
    campaign.run(FILE)
    other = tmp_path / "elsewhere"
    other.mkdir()
    second = CampaignFolder(other, campaign.answer)
    (other / "runs").symlink_to(tmp_path / "runs")
    text = FILE.replace("small", "../small")
    with pytest.raises(InputError, match=r"belongs to the campaign of .*--name"):
        second.run(text)
    assert second.run(text, "second").table.parent.name == "second"
    assert len(read_rows(campaign.state / "results.csv")) == 4
    # A file that was moved keeps its campaign.
    campaign.file.rename(tmp_path / "elsewhere/campaign.yaml")
    second.file.write_text(text)
    assert second.run(text).progress.done == 4


def test_a_changed_scenario_makes_new_cells_and_keeps_the_old(campaign: CampaignFolder) -> None:
    campaign.run(FILE)
    network = campaign.folder / "small/network.yaml"
    network.write_text(f"# a comment changes nothing\n{network.read_text()}")
    campaign.run()
    assert len(campaign.started) == 4
    network.write_text(network.read_text().replace("5ms", "6ms"))
    result = campaign.run()
    assert len(campaign.started) == 8
    rows = read_rows(result.table)
    assert [row["current"] for row in rows] == ["false"] * 4 + ["true"] * 4
    assert len({row["setup"] for row in rows}) == 4


@pytest.mark.parametrize("option", ["--dilation=2", "--links=userspace", "--on=g5k"])
def test_runs_with_other_options_are_other_cells(campaign: CampaignFolder, option: str) -> None:
    """What does not change a run makes no new one: the default, and how an answer is looked for."""
    campaign.run(FILE)
    campaign.run(options=("--links=auto", "--job=rennes:7", "--no-report"))
    assert len(campaign.started) == 4
    for _ in range(2):
        rows = read_rows(campaign.run(options=(option,)).table)
        assert len(campaign.started) == 8
    assert [row["current"] for row in rows] == ["false"] * 4 + ["true"] * 4
    campaign.run()
    assert len(campaign.started) == 8


def test_a_changed_campaign_keeps_its_older_rows(campaign: CampaignFolder) -> None:
    """A new key is a column after all others; what has been run is not run again."""
    campaign.run(FILE)
    columns = list(read_rows(campaign.state / "results.csv")[0])
    assert columns == [*FIXED_COLUMNS, "workload.batch_size"]
    campaign.run(FILE.replace("[96, 48]", "[48, 24]"))
    assert len(campaign.started) == 6
    result = campaign.run(
        "scenario: small\nvary: {workload.stop.steps: [5], network.networks.0.rate: [20mbit]}\n"
    )
    assert list(read_rows(result.table)[0]) == [
        *columns,
        "workload.stop.steps",
        "network.networks.0.rate",
    ]
    assert pq.read_table(result.table.with_suffix(".parquet")).column_names == list(
        read_rows(result.table)[0]
    )


def test_values_may_have_parts(campaign: CampaignFolder) -> None:
    text = "scenario: small\nvary: {workload.strategy: [gossip, {name: local_sgd, steps: 8}]}\n"
    for _ in range(2):
        result = campaign.run(text)
    with_parts = '{"name": "local_sgd", "steps": 8}'
    assert [overrides[0] for overrides in campaign.started] == [
        'workload.strategy="gossip"',
        f"workload.strategy={with_parts}",
    ]
    assert [row["workload.strategy"] for row in read_rows(result.table)] == ['"gossip"', with_parts]


def test_everything_is_checked_before_the_first_run(campaign: CampaignFolder) -> None:
    with pytest.raises(InputError, match="no_such_model"):
        campaign.run("scenario: small\nvary: {workload.model: [cnn, no_such_model]}\n")
    with pytest.raises(InputError, match="bacth_size"):
        campaign.run("scenario: small\nvary: {workload.bacth_size: [1]}\n")
    assert campaign.started == []
    assert not (campaign.folder / "runs/campaigns").exists()


def test_a_failed_cell_says_why(campaign: CampaignFolder) -> None:
    campaign.answer = lambda _, __: {"status": "failed", "error": "rank 2 ran out of memory"}
    result = campaign.run("scenario: small\n")
    assert read_rows(result.table)[0]["reason"] == "rank 2 ran out of memory"
    assert "rank 2 ran out of memory" in (campaign.state / "index.html").read_text()


def test_a_full_disk_stops_it_and_costs_no_finished_cell(
    campaign: CampaignFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = iter([None, None, "/: only 3 KiB are free"])
    monkeypatch.setattr(module, "describe_full_disk", lambda _: next(full))
    with pytest.raises(OutputError, match=r"3 KiB.*same command"):
        campaign.run(FILE)
    monkeypatch.undo()
    with read_campaign(campaign.state) as state:
        assert len(state.list_done()) == 2


def test_a_campaign_runs_once_at_a_time(campaign: CampaignFolder) -> None:
    campaign.state.mkdir(parents=True)
    says = rf"another process \({os.getpid()} of .* since 20"
    with open_campaign(campaign.state), pytest.raises(InputError, match=says):
        campaign.run(FILE)
    assert len(campaign.run(FILE).table.read_text().splitlines()) == 5


def test_a_killed_campaign_is_waited_for(campaign: CampaignFolder) -> None:
    """What is left of its last run holds the lock, and the next start goes on after its end."""
    campaign.state.mkdir(parents=True)
    script = (
        "import os, sys, time; from pathlib import Path\n"
        "from laggard.campaign.campaign_state import open_campaign\n"
        f"with open_campaign(Path({str(campaign.state)!r})):\n"
        "    if os.fork():\n"
        "        print('running', flush=True)\n"
        "        os.kill(os.getpid(), 9)\n"
        "    while not Path(sys.argv[1]).exists():\n"
        "        time.sleep(0.01)\n"
        "    os._exit(0)\n"
    )
    release = campaign.state.parent / "release"
    command = [sys.executable, "-c", script, str(release)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "running\n"
        assert killed.wait() == -signal.SIGKILL
        threading.Timer(0.5, release.touch).start()
        result = campaign.run(FILE)
    assert release.exists()
    assert len(result.table.read_text().splitlines()) == 5


def test_stop_rules(campaign: CampaignFolder) -> None:
    """An interval narrow enough ends the repeats of one setup; no time ends everything."""
    campaign.answer = lambda number, _: {
        **DONE,
        "outcome": {"makespan_s": 10 + 0.01 * (number % 2)},
    }
    text = "scenario: small\nrepeats: 9\norder: paired\nvary: {workload.batch_size: [96, 48]}\n"
    result = campaign.run(f"{text}stop: {{interval: {{width: 5%}}}}\n".replace("5%", "0.05"))
    assert (len(campaign.started), result.skipped) == (6, 12)
    assert campaign.run(f"{text}stop: {{time: 0s}}\n").stopped is not None
    assert campaign.run(text).progress.done == 18


def test_rules_of_hours() -> None:
    attempts = [Attempt("a", "t", "done", {"elapsed_s": 1800.0, "nodes": 3})] * 2
    rules = StopRules.model_validate({"node_hours": 3, "time": "1h"})
    assert find_stop_reason(rules, 10, attempts[:1]) is None
    assert "stop.node_hours: 3.00" in str(find_stop_reason(rules, 10, attempts))
    assert "stop.time: 3600 s" in str(find_stop_reason(rules, 3600, []))


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_damaged_state_is_refused(campaign: CampaignFolder, attack: str) -> None:
    """Nothing is run, and the table stays."""
    table = campaign.run(FILE).table
    before, count = table.read_text(), len(campaign.started)
    prepare, says = ATTACKS[attack]
    prepare(table.with_name("campaign.sqlite"))
    with pytest.raises(InputError, match=says):
        campaign.run()
    assert (table.read_text(), len(campaign.started)) == (before, count)


@pytest.mark.parametrize(
    "name", ["results.csv", "results.parquet", "campaign.sqlite", "index.html"]
)
def test_a_link_in_a_campaign_s_folder_is_refused(campaign: CampaignFolder, name: str) -> None:
    table = campaign.run(FILE).table
    mine = campaign.folder / "mine"
    content = table.with_name(name).read_bytes()
    mine.write_bytes(content)
    table.with_name(name).unlink()
    table.with_name(name).symlink_to(mine)
    with pytest.raises(InputError, match="a symbolic link"):
        campaign.run(FILE.replace("repeats: 2", "repeats: 3"))
    assert mine.read_bytes() == content


@pytest.mark.long
@needs_tun
def test_runs_for_real(
    laggard: Laggard, make_scenario: Callable[..., Path], tmp_path: Path
) -> None:
    """The same seed gives the same losses, in the order in which the campaign says."""
    make_scenario()
    path = tmp_path / "campaign.yaml"
    path.write_text("scenario: small\nrepeats: 2\nseeds: same\nvary: {workload.stop.steps: [12]}\n")
    process = laggard.start("campaign", str(path), "--fidelity", "record", "--no-report")
    out, errors = process.communicate(timeout=480)
    for repeat in range(2):
        assert f"small · repeat {repeat} ·" in out, errors
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
    for run in runs:
        assert (Path(run["folder"]) / "answer.json").is_file()
        assert not (Path(run["folder"]) / "report.html").exists()
    first, second = (
        pq.read_table(Path(run["folder"]) / "steps.parquet", columns=["step", "rank", "loss"])
        for run in runs
    )
    assert len(first) == 36
    assert first.equals(second)
