"""`laggard run` of a folder without `workload.yaml`: its plays are the experiment."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.command_line import COMMAND, SMALL, needs_tun
from tests.users import Runner

ENDS = {"done", "unfaithful"}
CORES = "python3 -c 'import os; print(len(os.sched_getaffinity(0)))'"
WORKFLOW = """
- hosts: cloud.*
  gather_facts: false
  prepare:
    - copy: {{src: "{{{{ artifacts_dir }}}}/greeting.txt", dest: "{folder}/prepared"}}
    - shell: "{cores} > {folder}/prepare-cores"
  launch:
    - shell: "nohup sleep 600 > /dev/null 2>&1 &"
- hosts: edge.trainer.1.1
  gather_facts: false
  launch:
    - shell: "(hostname; {cores}) > {folder}/launched"
  finalize:
    - fetch: {{src: "{folder}/launched", dest: "{{{{ working_dir }}}}/", flat: true}}
"""


@pytest.fixture
def experiment(own_runner: Runner) -> Path:
    """A folder that E2Clab deploys too, and the folder of its artifacts beside it."""
    folder = own_runner.folder / "experiment"
    folder.mkdir()
    for name, text in SMALL.items():
        if name != "workload.yaml":
            (folder / name).write_text(text)
    artifacts = own_runner.folder / "artifacts"
    artifacts.mkdir()
    (artifacts / "greeting.txt").write_text("hello")
    (folder / "workflow.yaml").write_text(WORKFLOW.format(folder=own_runner.folder, cores=CORES))
    return folder


def _run_arguments(runner: Runner, experiment: Path, *options: str) -> list[str]:
    places = [
        str(experiment),
        str(runner.folder / "artifacts"),
        "--runs",
        str(runner.folder / "runs"),
    ]
    return ["run", *places, "--json", "--fidelity", "record", *options]


@pytest.mark.long
@needs_tun
def test_its_plays_run_on_the_verified_continuum(own_runner: Runner, experiment: Path) -> None:
    ended = own_runner.run(COMMAND, *_run_arguments(own_runner, experiment, "--for", "1s"))
    record = json.loads(ended.stdout)
    assert record["status"] in ENDS, ended.stderr
    assert record["strategy"]["name"] == "none"
    stages = [stage["name"] for stage in record["stages"]]
    expected = ["verify links", "workflow: prepare", "workflow: launch", "up", "workflow: finalize"]
    assert [name for name in stages if name in expected] == expected
    folder = own_runner.folder
    assert (folder / "prepared").read_text() == "hello"
    launched = (Path(record["folder"]) / "workflow" / "launched").read_text().split()
    assert launched == ["edge.trainer.1.1", "1"], "what launch starts is held to a share of a core"
    prepared = int((folder / "prepare-cores").read_text())
    assert prepared == len(os.sched_getaffinity(0)), "what prepares it is not"
    assert any("trains nothing" in sentence for sentence in record["answer"])
    repeated = own_runner.run(COMMAND, "report", record["folder"])
    assert repeated.returncode == 0, repeated.stderr
    assert "trains nothing" in repeated.stdout


@pytest.mark.long
@needs_tun
def test_a_signal_ends_it_after_its_data_is_fetched(own_runner: Runner, experiment: Path) -> None:
    process = own_runner.start(COMMAND, *_run_arguments(own_runner, experiment, "--for", "1h"))
    while not _is_up(own_runner.folder) and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=240)
    record = json.loads(output)
    assert (record["status"], process.returncode) == ("interrupted", 130), errors
    assert (Path(record["folder"]) / "workflow" / "launched").exists()
    assert (Path(record["folder"]) / "report.html").exists()


def _is_up(folder: Path) -> bool:
    records = [json.loads(path.read_text()) for path in folder.glob("runs/experiment/2*/run.json")]
    return any(
        stage["name"] == "workflow: launch" for record in records for stage in record["stages"]
    )
