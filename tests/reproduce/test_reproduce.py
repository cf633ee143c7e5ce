"""A run, a crate and a campaign are run again, and the report says what agrees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from laggard.cli.main import main
from tests.reproduce.originals import (
    HOST,
    Again,
    Change,
    change_one_loss,
    change_record,
    make_original,
    scale_durations,
    stand_in,
)

SHELL = '- hosts: "edge.*"\n  launch:\n    - shell: touch /tmp/evil\n'


def laggard(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


@pytest.mark.parametrize("kind", ["run", "folder crate", "zip crate"])
def test_an_equal_run_agrees_bit_for_bit(
    runs: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    original = make_original(runs)
    again = stand_in(monkeypatch, Again(original))
    source = original
    if kind != "run":
        source = Path("handed_over" if kind == "folder crate" else "over.zip").absolute()
        assert laggard("export", original, "--crate", "--out", source).exit_code == 0
    done = laggard("reproduce", source, "--runs", runs if kind == "run" else "other")
    assert (done.exit_code, again.started) == (0, [["small", "run", "--links", "auto"]])
    assert "480 losses are equal bit for bit" in done.output
    assert "made by the same versions" in done.output
    assert done.output.endswith("the reproduction agrees with the original\n")
    assert not list(runs.glob(".reproduce-*"))


@pytest.mark.parametrize(
    ("change", "quantity", "words"),
    [
        (change_one_loss, "losses", "1 of 480 losses differ, the first in step 30 of rank 0"),
        (scale_durations(1.5), "makespan", "a difference of 50 %"),
        (scale_durations(1.5), "step time", "which is beyond it"),
        (change_record(status="failed", error="it broke"), "status", "done and failed: it broke"),
        (change_record(outcome=None), "makespan", "the reproduction has no outcome"),
    ],
)
def test_what_differs_is_named(
    runs: Path, monkeypatch: pytest.MonkeyPatch, change: Change, quantity: str, words: str
) -> None:
    original = make_original(runs)
    stand_in(monkeypatch, Again(original, change))
    done = laggard("reproduce", original, "--runs", runs, "--json")
    assert done.exit_code == 1
    document = json.loads(done.output)
    sentences = {each["quantity"]: each for each in document["runs"][0]["judgments"]}
    assert not document["agrees"]
    assert not sentences[quantity]["agrees"]
    assert words in sentences[quantity]["sentence"]


def test_a_difference_within_the_tolerance_agrees_and_says_what_decides(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = make_original(runs)
    stand_in(monkeypatch, Again(original, scale_durations(1.02)))
    done = laggard("reproduce", original, "--runs", runs)
    assert done.exit_code == 0
    assert "the tolerance of 5 % between runs decides" in done.output
    stand_in(monkeypatch, Again(original, scale_durations(1.02)))
    strict = laggard("reproduce", original, "--runs", runs.with_name("b"), "--tolerance", "0.1")
    assert strict.exit_code == 1


def test_on_other_hosts_losses_are_compared_by_a_test(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(folder: Path) -> None:
        change_one_loss(folder)
        change_record(hosts=({**HOST, "cpu": "another"},), versions={"torch": "2.14.0"})(folder)

    original = make_original(runs)
    stand_in(monkeypatch, Again(original, change))
    done = laggard("reproduce", original, "--runs", runs)
    assert done.exit_code == 0
    lines = done.output.splitlines()
    # What made the runs comes first.
    assert lines[2:5] == [
        "    version of laggard: 0.1.0 -> none",
        "    version of torch: 2.13.0 -> 2.14.0",
        "    cpu of this machine: processor -> another",
    ]
    assert "the processors differ" in done.output
    assert "the mean loss of the reproduction is 1 times that of the original" in done.output


def test_programs_of_a_stranger_run_only_with_trust(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = make_original(
        runs, workflow=SHELL, workload='model: "evil.code:make"\ndataset: digits\nstop: {steps: 9}'
    )
    again = stand_in(monkeypatch, Again(original))
    assert laggard("export", original, "--crate", "--out", "c.zip").exit_code == 0
    refused = laggard("reproduce", "c.zip", "--runs", "other")
    assert (refused.exit_code, again.started) == (2, [])
    assert "launch on edge.*: shell touch /tmp/evil" in refused.output
    assert "model evil.code:make" in refused.output
    assert laggard("reproduce", "c.zip", "--runs", "other", "--trust").exit_code == 0
    # The user's own runs are trusted like the scenario that made them.
    assert laggard("reproduce", original, "--runs", runs).exit_code == 0
    assert len(again.started) == 2


def test_options_after_the_dashes_go_to_the_run(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = make_original(runs)
    change_record(testbed="g5k")(original)
    again = stand_in(monkeypatch, Again(original))
    refused = laggard("reproduce", original, "--runs", runs)
    assert (refused.exit_code, again.started) == (2, [])
    assert "-- --on g5k" in refused.output
    assert laggard("reproduce", original, "--runs", runs, "--", "--on", "local").exit_code == 0
    assert again.started == [["small", "run", "--on", "local"]]


def _make_campaign(runs: Path, count: int) -> Path:
    folder = runs / "campaigns" / "sweep"
    folder.mkdir(parents=True)
    lines = ["cell,scenario,variant,repeat,seed,attempt,status,run,folder,workload.batch_size"]
    for i in range(count):
        run = make_original(runs, f"20261126T20000{i}.000Z-0a0a0a")
        lines.append(f"c{i},small,,{i},3,1,done,{run.name},{run},64")
    lines.append("c9,small,,9,3,1,failed,,,64")
    (folder / "results.csv").write_text("\n".join(lines) + "\n")
    (folder / "campaign.yaml").write_text("scenario: small\n")
    return folder


@pytest.mark.parametrize("as_crate", [False, True])
def test_a_campaign_is_reproduced_and_continues_where_it_stopped(
    runs: Path, monkeypatch: pytest.MonkeyPatch, as_crate: bool
) -> None:
    source: Path = _make_campaign(runs, 3)
    original = next((runs / "small").iterdir())
    if as_crate:
        assert laggard("export", "sweep", "--crate", "--out", "sweep.zip").exit_code == 0
        source = Path("sweep.zip")
    again = stand_in(monkeypatch, Again(original))
    other = runs if not as_crate else Path("other")

    def stop(_: Path) -> None:
        if len(again.started) == 2:
            again.error = KeyboardInterrupt()

    again.change = stop
    assert laggard("reproduce", source, "--runs", other).exit_code == 130
    again.error = None
    done = laggard("reproduce", source, "--runs", other)
    assert (done.exit_code, len(again.started)) == (0, 3), done.output
    assert "all 3 pairs: agrees  makespan: the mean makespan" in done.output
    assert "small, seed 3, workload.batch_size=64: agrees" in done.output


def test_a_campaign_whose_runs_are_gone_is_refused(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = stand_in(monkeypatch, Again(runs))
    folder = runs / "campaigns" / "gone"
    folder.mkdir(parents=True)
    (folder / "results.csv").write_text("run,status,folder\n1,done,/nowhere/1\n")
    for arguments in (("reproduce", folder), ("export", folder, "--crate")):
        refused = laggard(*arguments, "--runs", runs)
        assert refused.exit_code == 2
        assert "--runs" in refused.output
    assert again.started == []
