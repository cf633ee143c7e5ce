"""`laggard compare` on run folders."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from laggard.analysis.evaluate.synthetic.run_generator import generate_run
from laggard.analysis.evaluate.synthetic.trace_spec import Injection, TraceSpec
from laggard.analysis.findings.compare_folders import name_setups
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.write_run import write_run
from laggard.cli.main import main
from laggard.core.run_schema import RunRecord, RunStatus, StrategyRecord
from tests.analysis.campaign_tables import TableSpec, generate_rows, write_results
from tests.analysis.kineto_traces import host_document, write

SLOW = (Injection("compute", 3.0, rank=2),)


def written(
    folder: Path, run_id: str, spec: TraceSpec, *settings: str, status: RunStatus = "done"
) -> Path:
    run = generate_run(spec)
    return write_run(
        with_record(run, id=run_id, seed=spec.seed, command=command(*settings), status=status),
        folder / run_id,
    )


def with_record(run: RunData, **changes: object) -> RunData:
    assert run.record is not None
    return dataclasses.replace(run, record=run.record.model_copy(update=changes))


def command(*settings: str) -> tuple[str, ...]:
    return (
        "laggard",
        "run",
        "quickstart",
        *(each for setting in settings for each in ("--set", setting)),
    )


def record(**changes: object) -> RunRecord:
    run = with_record(generate_run(TraceSpec(steps=2)), **changes)
    assert run.record is not None
    return run.record


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    root = tmp_path_factory.mktemp("runs")
    even = [
        written(root, f"even{seed}", TraceSpec(steps=60, seed=seed), "workload.seed=7")
        for seed in (1, 2, 3)
    ]
    slow = [
        written(
            root, f"slow{s}", TraceSpec(steps=60, seed=s, injections=SLOW), "workload.batch_size=64"
        )
        for s in (1, 2, 3)
    ]
    failed = [written(root, "broken", TraceSpec(steps=5), status="failed")]
    return {"even": even, "slow": slow, "failed": failed}


def compared(*runs: Path, json_: bool = False) -> str:
    done = CliRunner().invoke(main, ["compare", *map(str, runs), *(["--json"] if json_ else [])])
    assert done.exit_code == 0, done.output
    return done.output


def test_repeats_are_gathered_and_setups_held_against_the_first(
    folders: dict[str, list[Path]],
) -> None:
    document = json.loads(
        compared(*folders["slow"], *folders["even"], *folders["failed"], json_=True)
    )
    slow, even = document["setups"]
    assert slow["seeds"] == even["seeds"] == [1, 2, 3]
    assert slow["speedup"] is None
    assert even["speedup"]["low"] > 1.5
    assert even["speedup"]["low"] <= even["speedup"]["mean"] <= even["speedup"]["high"]
    assert slow["causes"][0]["runs"] == 3
    assert "workload.batch_size=64" in slow["name"]
    assert "seed" not in even["name"]
    (told,) = document["left_out"]
    assert told.endswith("is skipped: generated broken has the status failed, not done")


def test_people_read_the_same(folders: dict[str, list[Path]]) -> None:
    said = compared(*folders["slow"], *folders["even"])
    assert "(3 runs)" in said
    assert "times as fast as" in said
    assert "compute, deterministic (in 3 of 3 runs)" in said
    assert "mean seconds per worker: " in said
    assert "accuracy 96.0 % (96.0 to 96.0 %); +0.0 (+0.0 to +0.0) points compared with " in said
    assert "1 (1 to 1) times as much as " in said


@pytest.mark.long
def test_traces_of_other_tools_are_compared_as_runs(tmp_path: Path) -> None:
    usual = write(tmp_path / "usual", [host_document(0), host_document(1)])
    slow = write(tmp_path / "slow", [host_document(0), host_document(1, late=100)])
    arguments = ["compare", str(usual), str(slow), "--runs", str(tmp_path / "runs"), "--json"]
    answered = CliRunner().invoke(main, arguments)
    assert answered.exit_code == 0, answered.output
    setups = json.loads(answered.stdout)["setups"]
    assert [setup["name"] for setup in setups] == ["usual", "slow"]


def test_one_setup_alone_is_told_by_all_that_it_is(folders: dict[str, list[Path]]) -> None:
    said = compared(*folders["even"])
    assert said.startswith("generated, allreduce, generated (3 runs)")
    assert "times as fast" not in said


def test_runs_none_of_which_was_done_are_refused(folders: dict[str, list[Path]]) -> None:
    done = CliRunner().invoke(main, ["compare", *map(str, folders["failed"])])
    assert done.exit_code == 2
    assert "nothing to compare" in done.output


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ([{"seed": 1}, {"seed": 2}], ["generated, allreduce, generated"] * 2),
        ([{"scenario": "a"}, {"scenario": "b"}], ["a", "b"]),
        (
            [
                {},
                {
                    "strategy": StrategyRecord(
                        name="gossip", sync_mode="asynchronous", description="gossip, graph ring"
                    )
                },
            ],
            ["allreduce", "gossip, graph ring"],
        ),
        (
            [
                {"command": command("workload.strategy=hop", "workload.seed=3", "x=1")},
                {"command": command("x=2")},
            ],
            ["x=1", "x=2"],
        ),
        (
            [{"command": ("laggard", "run", "q", "--set=x=1")}, {"command": command("x=1", "y=2")}],
            ["base setup", "y=2"],
        ),
    ],
)
def test_setups_are_named_by_what_differs(
    changes: list[dict[str, object]], names: list[str]
) -> None:
    assert list(name_setups([record(**each) for each in changes])) == names


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    return write_results(tmp_path / "sweep", generate_rows(TableSpec(repeats=3)))


def test_a_campaign_is_compared_setup_by_setup(campaign: Path) -> None:
    said = compared(campaign)
    assert said.startswith("fog\n  strategy=allreduce, rate=20mbit (3 runs, baseline)\n")
    assert "times as fast" in said
    assert "best: strategy=local_sgd steps=8, rate=100mbit, with a probability of" in said
    assert "power: " in said
    assert "mean makespan by axis, over all setups" in said
    document = json.loads(compared(campaign / "results.csv", json_=True))
    parts = {"table", "measure", "groups", "effects", "crossings", "left_out"}
    assert set(document) == parts
    (group,) = document["groups"]
    assert set(group) == {"name", "setups", "fastest", "second", "power"}
    assert group["setups"][1]["effects"]["speedup"]["method"] == "paired Student"


def test_a_campaign_has_a_baseline_groups_and_a_figure(campaign: Path, tmp_path: Path) -> None:
    figure = tmp_path / "effects.svg"
    options = ["--baseline", "workload.strategy=local_sgd steps=8", "--figure", str(figure)]
    per = ["--per", "network.networks.0.rate"]
    done = CliRunner().invoke(main, ["compare", str(campaign), *options, *per])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("rate=20mbit\n  strategy=local_sgd steps=8 (3 runs, baseline)")
    assert figure.read_text(encoding="utf-8").startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{campaign}", "{campaign}"], "is a campaign: give it alone"),
        (["quickstart", "--per", "scenario"], "need a campaign"),
        (["{campaign}", "--figure", "effects.pdf"], "let it end in .svg or .png"),
        (["{campaign}", "--baseline", "allreduce"], "give AXIS=VALUE"),
        (["{campaign}", "--per", "rate"], "rate: not an axis"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    arguments: list[str], message: str, campaign: Path
) -> None:
    given = [each.format(campaign=campaign) for each in arguments]
    done = CliRunner().invoke(main, ["compare", *given])
    assert done.exit_code == 2
    assert message in done.output
