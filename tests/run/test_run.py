"""A whole run, started as a user starts it: what it leaves behind."""

from __future__ import annotations

import gzip
import html
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from laggard.analysis.tables.load_run import read_alarms
from laggard.cli.main import main
from laggard.core.run_schema import FidelityCheck, Finding, RunRecord
from laggard.core.span_schema import (
    event_schema,
    host_schema,
    link_schema,
    span_schema,
    step_schema,
)
from tests.command_line import Laggard, needs_tun
from tests.run.slower_ranks import find_clearly_slower, measure_slowness

SCHEMAS = {
    "spans": span_schema,
    "steps": step_schema,
    "links": link_schema,
    "hosts": host_schema,
    "events": event_schema,
}
STAGES = ("prepare", "launch", "finalize")
STEPS = 60


@needs_tun
def test_run_leaves_a_complete_folder(
    laggard: Laggard, make_scenario: Callable[..., Path], tmp_path: Path
) -> None:
    stages = "".join(f"  {s}: [{{shell: touch {tmp_path}/{s}-$(hostname)}}]\n" for s in STAGES)
    answer = laggard.run(make_scenario(workflow=f"- hosts: edge.*\n{stages}"), report=True)
    folder = Path(str(answer["folder"]))
    record = RunRecord.model_validate_json((folder / "run.json").read_bytes())
    _check_outcome(record)
    _check_files(folder)
    _check_fidelity(record, folder)
    _check_alarms(answer, folder)
    _check_findings(folder)
    for stage in STAGES:
        assert {file.name for file in tmp_path.glob(f"{stage}-*")} == {
            f"{stage}-edge.trainer.1.1",
            f"{stage}-edge.trainer.1.2",
        }


def _check_outcome(record: RunRecord) -> None:
    assert record.outcome is not None
    assert (record.outcome.steps, record.outcome.stopped_by) == (STEPS, "steps")
    assert 0 < record.outcome.fairness <= 1
    assert record.outcome.makespan_s > 0
    assert record.outcome.bytes_sent > 0
    assert record.outcome.bytes_across_tiers is not None
    assert 0 <= record.outcome.bytes_across_tiers <= record.outcome.bytes_sent


def _check_files(folder: Path) -> None:
    for name, schema in SCHEMAS.items():
        assert pq.read_schema(folder / f"{name}.parquet").equals(schema()), name
    steps = pq.read_table(folder / "steps.parquet").to_pandas()
    assert sorted(zip(steps["rank"], steps.step, strict=True)) == [
        (rank, step) for rank in range(3) for step in range(STEPS)
    ]
    trace = json.loads(gzip.decompress((folder / "trace.perfetto.json.gz").read_bytes()))
    assert trace["traceEvents"]
    assert "<html" in (folder / "report.html").read_text()
    assert sorted(f.name for f in (folder / "scenario").iterdir()) == sorted(
        f"{n}.yaml" for n in ("heterogeneity", "layers_services", "network", "workflow", "workload")
    )
    assert (folder.parent / "latest").resolve() == folder.resolve()
    work = json.loads((folder / "counters.json").read_text())["work"]
    assert [done["steps"] for done in work] == [STEPS] * 3
    assert "is ready" in (folder / "logs" / "rank-0.log").read_text()


def _check_fidelity(record: RunRecord, folder: Path) -> None:
    """The run is `unfaithful` exactly where a file of its folder says why."""
    checks = [
        FidelityCheck.model_validate(c) for c in json.loads((folder / "fidelity.json").read_text())
    ]
    assert {"rtt", "rate", "cpu"} <= {check.kind for check in checks}
    violations = json.loads((folder / "fidelity_violations.json").read_text())
    faithful = all(check.ok for check in checks) and not violations
    assert record.status == ("done" if faithful else "unfaithful")
    if record.error is not None:
        page = html.unescape((folder / "report.html").read_text())
        assert str(record.error).splitlines()[0] in page


def _check_findings(folder: Path) -> None:
    """The hosts with half the share of the third are found, as the run goes and afterwards.

    Other programs can slow down the third host as much, so its trace says what there is to find.
    """
    expected = {f"edge.trainer.1.{rank}" for rank in find_clearly_slower(folder)}
    findings = [
        Finding.model_validate(f) for f in json.loads((folder / "stragglers.json").read_text())
    ]
    slow = {f.host for f in findings if (f.family, f.kind) == ("compute", "deterministic")}
    assert slow >= expected, f"{measure_slowness(folder)}, found: {findings}"
    assert read_alarms(folder / "alarms.jsonl") or len(expected) < 2


def _check_alarms(answer: dict[str, object], folder: Path) -> None:
    """Alarms are raised as the run goes, and the command's answer lists them."""
    alarms = read_alarms(folder / "alarms.jsonl")
    assert all(alarm.reported_s is not None and alarm.raised_step < STEPS for alarm in alarms)
    assert answer["alarms"] == [alarm.model_dump(mode="json") for alarm in alarms]


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("workload.batch_size=1", "batch_size"),
        ("network.networks.0.delay=10 parsecs", "10 parsecs"),
        ("workload.modle=mlp", "modle"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(
    make_scenario: Callable[..., Path], tmp_path: Path, setting: str, says: str
) -> None:
    runs = tmp_path / "runs"
    arguments = ["run", str(make_scenario()), "--set", setting, "--runs", str(runs), "--json"]
    answered = CliRunner().invoke(main, arguments)
    assert answered.exit_code == 2
    assert says in json.loads(answered.stdout)["error"]
    assert not runs.exists()


@needs_tun
@pytest.mark.parametrize("folder", ["/run/laggard-runs", "/dev/shm/laggard-runs"])
def test_runs_are_not_kept_where_the_sandbox_has_folders_of_its_own(
    make_scenario: Callable[..., Path], folder: str
) -> None:
    answer = Laggard(Path(folder)).run(make_scenario(), status=2)
    assert "--runs" in str(answer["error"])
    assert not Path(folder).exists()
