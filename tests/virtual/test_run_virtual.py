"""`laggard run --on virtual`, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from laggard.analysis.tables import arrow_columns
from laggard.analysis.tables.load_run import load_run
from laggard.cli.main import main
from laggard.virtual.server_model import ServerModel
from tests.virtual.federated_scenario import SHARES, write_federated


def test_a_run_has_a_folder_and_a_report_like_any_other(tmp_path: Path) -> None:
    folder = write_federated(tmp_path / "clients")
    found = CliRunner().invoke(
        main, ["run", str(folder), "--on", "virtual", "--runs", str(tmp_path / "runs"), "--json"]
    )
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    assert (document["status"], document["testbed"]) == ("done", "virtual")
    assert document["outcome"]["steps"] == 4
    assert document["federated"]["rounds"] == 4
    run = load_run(Path(document["folder"]))
    assert run.federated is not None
    assert (run.folder / "report.html").exists()
    assert not (run.folder / "workers").exists()
    steps = pq.read_table(run.folder / "steps.parquet").to_pandas()
    spans = pq.read_table(run.folder / "spans.parquet").to_pandas()
    selected = {(each.round, a.rank) for each in run.federated.rounds for a in each.answers}
    assert {*zip(steps.step, steps["rank"], strict=True)} == selected
    # The trace of a client has no gaps.
    for rank in range(len(SHARES)):
        own = spans[spans["rank"] == rank].sort_values("start_ns")
        ends = (own.start_ns + own.dur_ns).tolist()
        assert own.start_ns.tolist()[:1] + ends[:-1] == own.start_ns.tolist()
    sent = document["outcome"]["bytes_sent"]
    assert sent == sum(
        each["bytes"] for each in json.loads((run.folder / "counters.json").read_text())["links"]
    )
    assert sent >= 2 * 2 * 4 * 4 * 64 * 10, "two models to and from two clients in four rounds"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--set", "workload.strategy=allreduce", "--set", "workload.births=null"],
            "only federated trainings run",
        ),
        (["--links", "userspace"], "--links userspace: nothing is emulated in virtual time"),
        (["--dilation", "2"], "--dilation 2: nothing is emulated in virtual time"),
        (["--hosts", "inventory.yaml"], "valid only with --on ssh"),
    ],
)
def test_what_has_no_effect_is_refused(tmp_path: Path, words: list[str], message: str) -> None:
    folder = write_federated(tmp_path / "clients")
    runs = tmp_path / "runs"
    command = ["run", str(folder), "--on", "virtual", "--runs", str(runs), *words]
    found = CliRunner().invoke(main, command)
    assert found.exit_code == 2, found.output
    assert message in found.stderr
    assert not runs.exists()


def test_an_interrupted_run_keeps_its_rounds_and_its_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = {"name": "federated", "clients": 2, "tokens": {"fee": 10}}
    folder = write_federated(tmp_path / "clients", {"strategy": tokens})
    evaluate, evaluated = ServerModel.evaluate, [0]

    def interrupt_third(model: ServerModel) -> float:
        evaluated[0] += 1
        if evaluated[0] == 3:
            raise KeyboardInterrupt("SIGINT")
        return evaluate(model)

    monkeypatch.setattr(ServerModel, "evaluate", interrupt_third)
    runs = ["--runs", str(tmp_path / "runs")]
    every = ["--set", "workload.evaluate_every=1"]
    found = CliRunner().invoke(main, ["run", str(folder), "--on", "virtual", *every, *runs])
    assert found.exit_code == 130, found.output
    reported = CliRunner().invoke(main, ["report", "clients", *runs])
    assert "In three rounds, each client was selected" in reported.output
    run = load_run(tmp_path / "runs/clients/latest")
    assert run.federated is not None
    # The third round had ended, and its model was to be evaluated.
    assert [each.round for each in run.federated.rounds] == [0, 1, 2]
    assert len(run.ledger) == 2 * 2 * 3


def test_more_clients_than_a_report_takes_have_their_rounds_and_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_federated(tmp_path / "clients")
    command = ["run", str(folder), "--on", "virtual", "--runs", str(tmp_path / "runs"), "--json"]
    small = json.loads(CliRunner().invoke(main, command).stdout)
    monkeypatch.setattr(arrow_columns, "MAX_RANKS", len(SHARES) - 1)
    found = CliRunner().invoke(main, command)
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    assert document["report"] is None
    assert document["warnings"] == ["4 clients are more than the 3 that a report can have"]
    for key in ("rounds", "jain_index", "worst_rank"):
        assert document["federated"][key] == small["federated"][key]
    for key in ("steps", "accuracy", "bytes_sent", "stopped_by"):
        assert document["outcome"][key] == small["outcome"][key]
    assert document["outcome"]["fairness"] == pytest.approx(small["outcome"]["fairness"], rel=0.2)


def test_more_hosts_than_machines_are_for_virtual_time_only(tmp_path: Path) -> None:
    folder = write_federated(tmp_path / "clients")
    many = "layers_services.layers.1.services.0.quantity=600"
    found = CliRunner().invoke(main, ["check", str(folder), "--set", many])
    assert found.exit_code == 2
    assert "has 601 hosts and this testbed supports at most 500" in found.stderr
    assert "--on virtual" in found.stderr
    command = ["run", str(folder), "--on", "virtual", "--set", many, "--no-report", "--json"]
    ran = CliRunner().invoke(main, [*command, "--runs", str(tmp_path / "runs")])
    assert ran.exit_code == 0, ran.output
    assert len(json.loads(ran.stdout)["ranks"]) == 600


def test_clients_without_samples_end_in_a_message(tmp_path: Path) -> None:
    folder = write_federated(tmp_path / "clients", {"births": {"layers": {"cloud": [*range(10)]}}})
    command = ["run", str(folder), "--on", "virtual", "--runs", str(tmp_path / "runs")]
    found = CliRunner().invoke(main, command)
    assert found.exit_code != 0
    assert "Traceback" not in found.output
