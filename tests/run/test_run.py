"""A whole run, started as a user starts it: what it leaves behind."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from laggard.analysis.tables.load_run import read_alarms
from laggard.core.run_schema import FidelityCheck, Finding, RunRecord
from laggard.core.span_schema import (
    event_schema,
    host_schema,
    link_schema,
    span_schema,
    step_schema,
)
from tests.command_line import Laggard, needs_tun

pytestmark = needs_tun

SCHEMAS = {
    "spans": span_schema,
    "steps": step_schema,
    "links": link_schema,
    "hosts": host_schema,
    "events": event_schema,
}


def test_run_leaves_a_complete_folder(laggard: Laggard, make_scenario: Callable[..., Path]) -> None:
    answer = laggard.run(make_scenario())
    folder = Path(str(answer["folder"]))
    record = RunRecord.model_validate_json((folder / "run.json").read_bytes())
    assert record.status == "done"
    assert record.outcome is not None
    assert (record.outcome.steps, record.outcome.stopped_by) == (60, "steps")
    assert 0 < record.outcome.fairness <= 1
    assert record.outcome.makespan_s > 0
    assert record.outcome.bytes_sent > 0
    for name, schema in SCHEMAS.items():
        assert pq.read_schema(folder / f"{name}.parquet").equals(schema()), name
    assert [Finding.model_validate(f) for f in json.loads((folder / "stragglers.json").read_text())]
    checks = [
        FidelityCheck.model_validate(c) for c in json.loads((folder / "fidelity.json").read_text())
    ]
    assert {"rtt", "rate", "cpu"} <= {check.kind for check in checks}
    assert all(check.ok for check in checks)
    assert json.loads((folder / "fidelity_violations.json").read_text()) == []
    assert json.loads(gzip.decompress((folder / "trace.perfetto.json.gz").read_bytes()))[
        "traceEvents"
    ]
    assert "<html" in (folder / "report.html").read_text()
    assert sorted(f.name for f in (folder / "scenario").iterdir()) == sorted(
        f"{n}.yaml" for n in ("heterogeneity", "layers_services", "network", "workflow", "workload")
    )
    assert (folder.parent / "latest").resolve() == folder.resolve()
    findings = json.loads((folder / "stragglers.json").read_text())
    edge = [f for f in findings if (f["family"], f["kind"]) == ("compute", "deterministic")]
    assert {f["host"] for f in edge} == {"edge.trainer.1.1", "edge.trainer.1.2"}
    # As their shares say; steps are of 3 ms of CPU time here, and slices of 1 ms.
    assert all(f["slowdown"] == pytest.approx(2, rel=0.25) for f in edge), edge
    alarms = [
        alarm for alarm in read_alarms(folder / "alarms.jsonl") if alarm.kind == "deterministic"
    ]
    assert {alarm.host for alarm in alarms if alarm.family == "compute"} == {
        "edge.trainer.1.1",
        "edge.trainer.1.2",
    }
    assert all(alarm.reported_s is not None and alarm.raised_step < 60 for alarm in alarms)
    assert answer["alarms"] == [
        alarm.model_dump(mode="json") for alarm in read_alarms(folder / "alarms.jsonl")
    ]
    assert [
        done["steps"] for done in json.loads((folder / "counters.json").read_text())["work"]
    ] == [60, 60, 60]
    assert "is ready" in (folder / "logs" / "rank-0.log").read_text()


def test_same_seed_same_losses(laggard: Laggard, make_scenario: Callable[..., Path]) -> None:
    scenario = make_scenario()
    folders = [
        Path(str(laggard.run(scenario, "--set", "workload.stop.steps=12")["folder"]))
        for _ in range(2)
    ]
    first, second = (
        pq.read_table(f / "steps.parquet", columns=["step", "rank", "loss"]).to_pandas()
        for f in folders
    )
    assert len(first) == 36
    assert first.equals(second)


def test_workflow_runs_on_the_hosts_it_names(
    laggard: Laggard, make_scenario: Callable[..., Path], tmp_path: Path
) -> None:
    stages = "".join(
        f"  {s}: [{{shell: touch {tmp_path}/{s}-$(hostname)}}]\n"
        for s in ("prepare", "launch", "finalize")
    )
    scenario = make_scenario(workflow=f"- hosts: edge.*\n{stages}")
    laggard.run(scenario, "--set", "workload.stop.steps=5")
    for stage in ("prepare", "launch", "finalize"):
        assert {file.name for file in tmp_path.glob(f"{stage}-*")} == {
            f"{stage}-edge.trainer.1.1",
            f"{stage}-edge.trainer.1.2",
        }


def test_dilated_run_reports_virtual_time(
    laggard: Laggard, make_scenario: Callable[..., Path]
) -> None:
    """Three full cores do not fit this machine's: the continuum runs slower and is reported as if
    it had them."""
    cores = "deterministic:\n  - {hosts: '*', cpu: 100%}\n"
    answer = laggard.run(make_scenario(heterogeneity=cores), "--set", "workload.stop.steps=30")
    dilation = float(str(answer["dilation"]))
    folder = Path(str(answer["folder"]))
    checks = [
        FidelityCheck.model_validate(c) for c in json.loads((folder / "fidelity.json").read_text())
    ]
    assert all(check.ok for check in checks)
    slowdowns = [check.measured for check in checks if check.kind == "cpu"]
    assert np.allclose(slowdowns, 1.0, atol=0.1)
    assert dilation >= 1.0


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("workload.batch_size=1", "batch_size"),
        ("network.networks.0.delay=10 parsecs", "10 parsecs"),
        ("workload.modle=mlp", "modle"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(
    laggard: Laggard, make_scenario: Callable[..., Path], setting: str, says: str
) -> None:
    answer = laggard.run(make_scenario(), "--set", setting, status=2)
    assert says in str(answer["error"])
    assert not laggard.runs.exists()


@pytest.mark.parametrize("folder", ["/run/laggard-runs", "/dev/shm/laggard-runs"])
def test_runs_are_not_kept_where_the_sandbox_has_folders_of_its_own(
    make_scenario: Callable[..., Path], folder: str
) -> None:
    answer = Laggard(Path(folder)).run(make_scenario(), status=2)
    assert "--runs" in str(answer["error"])
    assert not Path(folder).exists()
