"""The record of a run says what made it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from laggard.core.run_schema import RunRecord, RunSettings
from laggard.run_folder.display import SilentDisplay
from laggard.run_folder.journal import Journal
from laggard.run_folder.record import create_record, record_origin
from laggard.run_folder.store import RunFolder, load_record
from laggard.scenario.load import load_scenario

OVERRIDES = (
    "workload.seed=8",
    'heterogeneity.dynamic=[{random: {every: 9s, for: 1s, seed: 5}, hosts: "edge.*", cpu: 9%}]',
)


def _git(folder: Path, *arguments: str) -> None:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    subprocess.run(command, check=True, capture_output=True)


def test_a_record_has_overrides_seeds_options_and_uncommitted_changes(
    make_scenario: Callable[..., Path], tmp_path: Path
) -> None:
    scenario = make_scenario()
    _git(scenario, "init", "-q")
    _git(scenario, "add", ".")
    _git(scenario, "commit", "-q", "-m", "first")
    (scenario / "network.yaml").write_text("networks: []\n")
    loaded = load_scenario(scenario, OVERRIDES)
    settings = RunSettings(links="userspace", dilation=2.0, fidelity="record")
    draft = create_record(loaded, "local", "userspace", ("laggard", "run"), (), settings)
    folder, record = RunFolder.create(tmp_path / "runs", draft)
    with folder:
        journal = Journal(record, folder, SilentDisplay())
        record_origin(journal, loaded)
        journal.update(status="done")
    read = load_record(folder.path)
    assert sorted(read.overrides) == sorted(OVERRIDES)
    assert read.seeds == {"workload.seed": 8, "heterogeneity.dynamic.0.random.seed": 5}
    assert read.settings == settings
    assert read.ended is not None
    of_scenario = next(each for each in read.repositories if "scenario" in each.holds)
    assert of_scenario.commit.endswith("-dirty")
    assert read.git == of_scenario.commit
    assert of_scenario.diff == "git_scenario.diff"
    assert b"+networks: []" in (folder.path / "git_scenario.diff").read_bytes()
    assert "seed: 8" in (folder.scenario / "workload.yaml").read_text()


def test_a_record_of_an_older_version_is_read() -> None:
    old = {
        "schema_version": 2,
        "id": "1",
        "scenario": "s",
        "status": "done",
        "command": [],
        "seed": 1,
        "versions": {},
        "git": None,
        "testbed": "local",
        "started": "2026-11-21T05:00:00+00:00",
    }
    record = RunRecord.model_validate(old)
    assert (record.overrides, record.seeds, record.repositories) == ((), {}, ())
    assert (record.settings, record.ended) == (None, None)
