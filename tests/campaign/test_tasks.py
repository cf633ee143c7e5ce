"""Cells that need no continuum: what is refused, what they give, and what a new digest needs."""

from __future__ import annotations

import csv
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from laggard.analysis.evaluate.case_evaluation import evaluate_cases
from laggard.analysis.evaluate.scoring import compute_score
from laggard.analysis.evaluate.synthetic.run_generator import generate_run
from laggard.analysis.evaluate.synthetic.trace_spec import Injection, Tier, TraceSpec
from laggard.analysis.evaluate.trace_grid import build_trace_grid, evaluate_trace
from laggard.analysis.tables.write_run import write_run
from laggard.campaign.campaign_file import load_campaign
from laggard.campaign.cells import Cell
from laggard.campaign.run_campaign import CampaignOptions, CampaignResult, plan_cells, run_campaign
from laggard.campaign.tasks import pools, task_loop
from laggard.campaign.tasks.analyze_task import AnalyzeTask
from laggard.campaign.tasks.choose_pool import choose_pool
from laggard.campaign.tasks.pools import LocalPool, WorkerPool
from laggard.campaign.tasks.registry import TASKS, run_task
from laggard.campaign.tasks.remote_pools import OarPool, SshPool, to_connect_options
from laggard.core.campaign_columns import TASK_COLUMNS
from laggard.core.errors import DeploymentError, InputError
from laggard.layers_services.machine import Access
from laggard.remote.testbeds.g5k import G5kTestbed
from laggard.remote.testbeds.ssh import SshTestbed
from tests.campaign.campaign_folders import SilentDisplay
from tests.command_line import Laggard

if TYPE_CHECKING:
    from distributed import Client

CELLS = """
command: evaluate
vary: {grid: [traces], case: [0-19]}
"""


@dataclass(frozen=True)
class ThreadPool(WorkerPool):
    """Two threads of this process, which start at once."""

    @property
    def processes(self) -> int:
        return 2

    @contextmanager
    def open_client(self) -> Iterator[Client]:
        from distributed import Client, LocalCluster

        with (
            LocalCluster(
                n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
            ) as cluster,
            Client(cluster) as client,
        ):
            yield client


def plan(folder: Path, text: str) -> Sequence[Cell]:
    """The cells of a campaign file with this text."""
    (folder / "many.yaml").write_text(text)
    return plan_cells(load_campaign(folder / "many.yaml"))


def run(
    folder: Path, text: str, pool: Callable[[], WorkerPool] = ThreadPool
) -> tuple[CampaignResult, SilentDisplay]:
    """Run the campaign with this text."""
    (folder / "many.yaml").write_text(text)
    display = SilentDisplay()
    options = CampaignOptions(folder / "runs", choose_pool=pool)
    return run_campaign(folder / "many.yaml", options, display), display


def read_rows(table: Path) -> list[dict[str, str]]:
    """The rows of a results table."""
    with table.open(newline="") as file:
        return list(csv.DictReader(file))


def write_generated_run(folder: Path, seed: int = 1) -> None:
    """A run folder with one slow host."""
    tiers = (Tier("cloud", 2), Tier("edge", 2))
    slow = Injection("compute", 3.0, first=20, last=39, rank=2)
    write_run(generate_run(TraceSpec(tiers, steps=60, seed=seed, injections=(slow,))), folder)


REFUSED: Mapping[str, tuple[str, str]] = {
    "unknown key": ("command: evaluate\nvary: {cses: [1]}", "cses.*did you mean .*cases"),
    "unknown value": ("command: evaluate\nvary: {grid: [run], case: [1]}", "grid.*runs"),
    "no number": ("command: evaluate\nvary: {case: [1.5]}", "case: 1.5"),
    "no case": ("command: evaluate\nvary: {seed: [1]}", "either `case` or `cases`"),
    "both": ("command: evaluate\nvary: {case: [1], cases: [3]}", "either `case` or `cases`"),
    "beyond": ("command: evaluate\nvary: {grid: [traces], case: [3240]}", "has 3,240 cases"),
    "backwards": ("command: evaluate\nvary: {case: [9-3]}", "not a range"),
    "huge": ("command: evaluate\nvary: {case: [0-999999]}", "not a range"),
    "in a variant": (
        "command: evaluate\nvary: {case: [1]}\nvariants: {a: {sed: 2}}",
        "sed.*did you mean .*seed",
    ),
    "scenario": ("command: evaluate\nscenario: small\nvary: {case: [1]}", "`scenario` is for runs"),
    "repeats": ("command: evaluate\nrepeats: 2\nvary: {case: [1]}", "`repeats` is for runs"),
    "for": ("command: evaluate\nfor: 3s\nvary: {case: [1]}", "`for` is for runs"),
    "node hours": (
        "command: evaluate\nstop: {node_hours: 1}\nvary: {case: [1]}",
        "`stop.node_hours` is for runs",
    ),
    "command": ("command: evaluat\nvary: {case: [1]}", "evaluate"),
    "no path": ("command: analyze\nvary: {strategy: [allreduce]}", "path"),
    "no such path": ("command: analyze\nvary: {path: [nowhere]}", "no such file"),
    "no match": ("command: analyze\nvary: {path: ['no*']}", "no file or folder"),
    "no trace": ("command: analyze\nvary: {path: [many.yaml]}", "suffix of a trace"),
    "no strategy": ("command: analyze\nvary: {path: [run], strategy: [fast]}", "fast"),
    "all": ("command: analyze\nvary: {path: [run], strategy: [all]}", "all is no strategy"),
    "no workers": ("command: analyze\nvary: {path: [run], workers: [{edge: x}]}", "workers"),
}


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    write_generated_run(folder / "run")
    return folder


@pytest.mark.parametrize("name", REFUSED)
def test_a_mistake_is_refused_before_anything_starts(name: str, run_folder: Path) -> None:
    text, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        plan(run_folder, text)
    assert not (run_folder / "runs").exists()


def test_the_command_line_says_it_in_one_message(laggard: Laggard, tmp_path: Path) -> None:
    (tmp_path / "many.yaml").write_text(REFUSED["unknown key"][0])
    with laggard.start("campaign", str(tmp_path / "many.yaml")) as process:
        _, errors = process.communicate()
    assert process.returncode == 2
    assert "did you mean" in errors
    assert len(errors.splitlines()) == 1
    assert not laggard.runs.exists()


def test_a_range_is_every_case_and_the_seed_has_its_column(tmp_path: Path) -> None:
    cells = plan(tmp_path, "command: evaluate\nvary: {case: [0-2, 7], seed: [4, 5]}")
    assert [cell.setup.varied["case"] for cell in cells[::2]] == [0, 1, 2, 7]
    assert [cell.seed for cell in cells[:2]] == [4, 5]
    assert len({cell.digest for cell in cells}) == 8


def test_a_cell_is_made_by_command_values_and_content(tmp_path: Path) -> None:
    text = "command: analyze\nvary: {path: ['*-run']}"
    write_generated_run(tmp_path / "a-run")
    write_generated_run(tmp_path / "b-run", seed=2)
    first, second = plan(tmp_path, text)
    assert [first.setup.varied["path"], second.setup.varied["path"]] == ["a-run", "b-run"]
    # What an analysis writes into a run folder changes nothing that is analyzed.
    (tmp_path / "a-run/report.html").write_text("new")
    assert plan(tmp_path, text)[0].digest == first.digest
    write_generated_run(tmp_path / "a-run", seed=3)
    again = plan(tmp_path, text)
    assert again[0].digest != first.digest
    assert again[1].digest == second.digest


@pytest.mark.long
def test_cells_add_up_to_what_evaluate_says(tmp_path: Path) -> None:
    """Each row is that of the case alone, and their counts give the scores of all."""
    result, display = run(tmp_path, CELLS)
    rows = read_rows(result.table)
    assert result.progress.done == len(rows) == len(display.rows) == 20
    cases = build_trace_grid(1)[:20]
    verdicts = list(evaluate_cases(cases, evaluate_trace, processes=1))
    by_case = {int(row["case"]): row for row in rows}
    for number, (case, verdict) in enumerate(zip(cases, verdicts, strict=True)):
        row = by_case[number]
        assert row["answer"] == case.name
        assert int(row["true_positives"]) == len(verdict.found)
        assert int(row["false_positives"]) == len(verdict.false_positives)
        assert row["cost_error"] == ("" if verdict.cost_error is None else repr(verdict.cost_error))
    score = compute_score(verdicts)
    found, false, missed = (
        sum(int(row[name]) for row in rows)
        for name in ("true_positives", "false_positives", "missed")
    )
    assert score.precision == found / (found + false)
    assert score.recall == found / (found + missed)
    assert score.f1 == 2 * found / (2 * found + false + missed)
    assert score.undetectable == sum(int(row["undetectable"]) for row in rows)
    assert score.top1 == sum(int(row["ranks_named"]) for row in rows) / sum(
        int(row["ranks_asked"]) for row in rows
    )


def test_the_next_call_computes_what_is_new_and_only_that(tmp_path: Path) -> None:
    run(tmp_path, CELLS.replace("0-19", "0-2"))
    _, display = run(tmp_path, CELLS.replace("0-19", "0-3"))
    assert [cell.setup.varied["case"] for cell, _ in display.rows] == [3]
    _, display = run(tmp_path, CELLS.replace("0-19", "0-3"))
    assert display.rows == []


def test_columns_of_a_task_stand_between_the_fixed_and_the_varied(tmp_path: Path) -> None:
    result, _ = run(tmp_path, "command: evaluate\nvary: {cases: [2], grid: [traces]}")
    columns = list(read_rows(result.table)[0])
    assert columns[-2:] == ["cases", "grid"]
    assert columns[-2 - len(TASKS["evaluate"].columns) : -2] == list(TASKS["evaluate"].columns)
    keys = {key for task in TASKS.values() for key in task.model_fields}
    assert not keys & set(TASK_COLUMNS)
    columns = {name for task in TASKS.values() for name in task.columns}
    assert columns == set(TASK_COLUMNS)


def test_a_run_is_analyzed_and_nothing_is_written(run_folder: Path) -> None:
    before = sorted(run_folder.rglob("*"))
    document = run_task("analyze", {"path": "run", "strategy": "local_sgd"}, str(run_folder))
    assert document["status"] == "done"
    assert isinstance(document["stragglers"], list)
    columns = document["columns"]
    assert isinstance(columns, dict)
    assert columns["estimated_s"] > 0
    assert sorted(run_folder.rglob("*")) == before


def test_a_task_that_fails_says_why(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"no parquet")
    document = run_task("analyze", {"path": "a.parquet"}, str(tmp_path))
    assert document["status"] == "invalid"
    assert "a.parquet" in str(document["error"])


def test_a_failed_cell_is_tried_again_as_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_command: str, _values: object, _folder: str) -> Mapping[str, object]:
        raise RuntimeError("a bug")

    monkeypatch.setattr(task_loop, "run_task", fail)
    result, _ = run(tmp_path, CELLS.replace("0-19", "0-1") + "retries: 2")
    rows = read_rows(result.table)
    assert sorted(row["attempt"] for row in rows) == ["1", "1", "2", "2", "3", "3"]
    assert {(row["status"], row["reason"]) for row in rows} == {("failed", "RuntimeError: a bug")}
    assert result.progress.failed == 2


@pytest.mark.parametrize(
    "options", [["--links", "userspace"], ["--fidelity", "record"], ["--dilation", "2"]]
)
def test_options_of_runs_are_refused(options: list[str], tmp_path: Path, laggard: Laggard) -> None:
    """They would be ignored, also where a dry run asks."""
    (tmp_path / "many.yaml").write_text(CELLS)
    for more in ([], ["--dry-run"]):
        with laggard.start("campaign", str(tmp_path / "many.yaml"), *options, *more) as process:
            _, errors = process.communicate()
        assert process.returncode == 2
        assert f"{options[0]} is for runs" in errors
    assert not laggard.runs.exists()


def test_a_missing_extra_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"pip install 'laggard\[cluster\]'") as error:
        run(tmp_path, CELLS, LocalPool)
    assert error.value.exit_status == 2


def test_testbeds_have_their_processes(tmp_path: Path) -> None:
    assert choose_pool(None, 3) == LocalPool(3)
    (tmp_path / "key").write_text("")
    (tmp_path / "machines.yaml").write_text(
        "machines: [{ssh: 127.0.0.1, user: me, port: 2222, key: key, address: 10.0.0.1}]"
    )
    pool = choose_pool(SshTestbed(tmp_path / "machines.yaml"), 4)
    assert isinstance(pool, SshPool)
    assert pool.per_machine == 4
    assert [to_connect_options(each) for each in pool.machines] == [
        {"username": "me", "port": 2222, "client_keys": [str(tmp_path / "key")]}
    ]
    g5k = G5kTestbed.from_options({"walltime": "02:00:00", "job_type": ("besteffort",)})
    jobs = choose_pool(g5k, 8)
    assert jobs == OarPool(8, Path.home(), "02:00:00", job_types=("besteffort",))
    with pytest.raises(InputError, match="--processes"):
        choose_pool(g5k, None)
    with pytest.raises(InputError, match="--job is for runs"):
        choose_pool(G5kTestbed.from_options({"job": ("1",)}), 8)


def test_machines_that_do_not_answer_are_one_message() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    pool = SshPool((Access("127.0.0.1", port=port),), 1)
    with pytest.raises(DeploymentError, match="could not be started"), pool.open_client():
        pass


def test_jobs_need_a_frontend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="oarsub"), OarPool(1, tmp_path).open_client():
        pass


def test_a_gateway_is_a_tunnel() -> None:
    options = to_connect_options(Access("node", "me", gateway="me@gate:22"))
    assert options == {"username": "me", "port": 22, "tunnel": "me@gate:22"}


def test_a_pattern_is_relative_to_the_file(run_folder: Path) -> None:
    assert AnalyzeTask.expand_values("path", ["r*n"], run_folder) == ["run"]
    with pytest.raises(InputError, match="relative to the campaign file"):
        AnalyzeTask.expand_values("path", ["x*"], run_folder)
