"""Output of a Flower app becomes tables, and their analysis finds who was slow."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from laggard.analysis.tables.load_run import load_run
from laggard.core.errors import RunFolderError
from laggard.core.hosts import Host
from laggard.core.span_schema import Phase
from laggard.core.virtual_time import Dilation
from laggard.flower.app_run import lines_path
from laggard.flower.collect_app import FLOWER_FILE, collect_app
from laggard.flower.message_log import ProgramLine
from laggard.workloads.output.training_end import TrainingEnd
from laggard.workloads.output.worker_output import WorkerOutputDir, append_line
from tests.flower.app_output import EVALUATION_S, TRANSFER_S, write_output
from tests.workloads.conftest import make_hosts

COMPUTE_S = (1.0, 1.0, 3.0)


def collect(
    folder: Path, lines: Sequence[ProgramLine], hosts: Sequence[Host], dilation: float = 1.0
) -> TrainingEnd | None:
    output_dir = WorkerOutputDir(folder / "workers")
    output_dir.folder.mkdir(parents=True)
    (folder / "logs").mkdir()
    for line in lines:
        append_line(lines_path(output_dir), asdict(line))
    return collect_app(folder, output_dir, hosts, Dilation(dilation), {})


@pytest.fixture
def clients() -> tuple[Host, ...]:
    return tuple(make_hosts(3))


@pytest.mark.parametrize("dilation", [1.0, 2.0])
def test_tables_have_the_times_of_the_output(
    dilation: float, clients: tuple[Host, ...], tmp_path: Path
) -> None:
    names = [each.name for each in clients]
    real_s = [each * dilation for each in COMPUTE_S]
    done = collect(tmp_path, write_output(names, real_s, 4, 1e4), clients, dilation)
    assert done is not None
    assert (done.steps, done.accuracy, done.evaluations) == (4, 0.875, 4)
    run = load_run(tmp_path)
    assert run.federated is not None
    assert [len(each.list_clients("accepted")) for each in run.federated.rounds] == [3] * 4
    took_s = [answer.took_s for answer in run.federated.rounds[2].answers]
    assert took_s == pytest.approx([each + 2 * TRANSFER_S / dilation for each in COMPUTE_S])
    evaluation_s = (EVALUATION_S + 2 * TRANSFER_S) / dilation
    for phase, each_s in ((Phase.FORWARD, COMPUTE_S), (Phase.OTHER, [evaluation_s] * 3)):
        chosen = run.spans.where(run.spans.phase == phase.code)
        for rank in range(3):
            durations_s = chosen.dur_ns[chosen.rank == rank] / 1e9
            assert durations_s == pytest.approx([each_s[rank]] * 4)
    losses = run.steps.loss[np.asarray(run.steps.rank) == 0]
    assert losses == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])


def test_documents_and_logs_are_kept(clients: tuple[Host, ...], tmp_path: Path) -> None:
    names = [each.name for each in clients]
    collect(tmp_path, write_output(names, COMPUTE_S, 2, 5.0), clients)
    document = json.loads((tmp_path / FLOWER_FILE).read_text())
    assert [each["metrics"]["evaluate"] for each in document["rounds"]] == [
        {"eval_acc": 0.5},
        {"eval_acc": 0.75},
    ]
    slow = [each for each in document["messages"] if each["client"] == names[2]]
    assert [each["kind"] for each in slow] == ["train", "evaluate"] * 2
    assert slow[0]["computed_s"] - slow[0]["received_s"] == pytest.approx(3.0)
    assert "[ROUND 2/2]" in (tmp_path / "logs/app.log").read_text()


def test_an_app_that_trains_nobody_has_no_tables(clients: tuple[Host, ...], tmp_path: Path) -> None:
    assert collect(tmp_path, [ProgramLine("app", 1, "hello")], clients) is None
    assert not (tmp_path / "steps.parquet").exists()
    assert (tmp_path / "logs/app.log").read_text() == "hello\n"


def test_damaged_output_is_refused(clients: tuple[Host, ...], tmp_path: Path) -> None:
    output_dir = WorkerOutputDir(tmp_path / "workers")
    output_dir.folder.mkdir()
    append_line(lines_path(output_dir), {"program": "app", "at_ns": "soon", "text": ""})
    with pytest.raises(RunFolderError, match="damaged"):
        collect_app(tmp_path, output_dir, clients, Dilation(1.0), {})
