"""Messages between two ranks in torch.profiler traces: what is matched, and what is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laggard.analysis.findings.analyze_run import analyze_run
from laggard.analysis.formats.registry import open_run
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.build_timeline import build_timeline
from laggard.core.run_schema import TraceOrigin
from tests.analysis.kineto_traces import Document, annotation, document, event, write
from tests.analysis.pipeline_traces import Pipeline, measure_duration, pipeline_documents

JOB = Pipeline(stages=3, steps=3, microbatches=3)


def read(folder: Path, documents: list[Document]) -> RunData:
    return open_run(write(folder / "traces", documents))


def origin(run: RunData) -> TraceOrigin:
    assert run.record is not None
    assert run.record.origin is not None
    return run.record.origin


def exchanges(made: Document) -> list[dict[str, Any]]:
    return [e for e in made["traceEvents"] if e["name"].startswith("ncclDevKernel_SendRecv")]


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("prefetch", [True, False])
def test_the_replay_has_the_measured_makespan(
    tmp_path: Path, *, blocking: bool, prefetch: bool
) -> None:
    job = replace(JOB, blocking=blocking, prefetch=prefetch and not blocking)
    run = read(tmp_path, pipeline_documents(job))
    assert origin(run).stages == (0, 0, 1, 1, 2, 2)
    assert [host.tier for host in run.hosts[::2]] == ["stage 0", "stage 1", "stage 2"]
    timeline = build_timeline(run)
    assert timeline.makespan == pytest.approx(measure_duration(job) / 1e6, rel=1e-3)
    analysis = analyze_run(run)
    assert analysis.replayed_s == pytest.approx(analysis.makespan_s)
    # A message takes 30 microseconds after the later of its two ends.
    waits = np.flatnonzero(timeline.posted >= 0)
    transfer = timeline.transfer[waits].max(axis=1) * 1e6
    assert np.median(transfer[transfer > 1]) == pytest.approx(30.0, abs=1.0)


def test_a_message_with_one_end_is_told_and_nothing_is_priced(tmp_path: Path) -> None:
    documents = pipeline_documents(JOB)
    events = documents[2]["traceEvents"]
    events.remove(exchanges(documents[2])[0])
    events.remove(next(e for e in events if e["name"] == "record_param_comms"))
    run = read(tmp_path, documents)
    assert not origin(run).replayable
    assert "only one end was recorded" in " ".join(origin(run).notes)
    analyze_run(run)


def test_messages_that_come_before_they_are_sent_are_told(tmp_path: Path) -> None:
    """No collective relates the clocks of two stages."""
    documents = pipeline_documents(JOB)
    for made in documents[2:4]:
        made["host_name"] = "node-2"
        for each in made["traceEvents"]:
            if "ts" in each:
                each["ts"] -= 50_000
    run = read(tmp_path, documents)
    assert not origin(run).replayable
    assert "arrive before they are sent" in " ".join(origin(run).notes)


def test_stages_that_are_not_in_the_traces(tmp_path: Path) -> None:
    """Waits for absent stages are transfers of the ranks that are there."""
    run = read(tmp_path, pipeline_documents(JOB)[2:])
    assert origin(run).replayable
    analysis = analyze_run(run)
    assert analysis.findings == ()
    assert analysis.replayed_s == pytest.approx(analysis.makespan_s)


def gloo_step(rank: int, step: int, at: float, late: float) -> list[dict[str, Any]]:
    """Rank 0 sends after its work, `late`, and rank 1 receives before its own."""
    name, operation = (("send", "recv")[rank], ("c10d::send", "c10d::recv_")[rank])
    sent, came = at + 200 + late, at + 230 + late
    start, end = (sent, came) if rank == 0 else (at + 20, came)
    worked = (at + 20, sent - 10) if rank == 0 else (came + 10, came + 400)
    inputs = {"Concrete Inputs": ["", "", str(1 - rank), "0"]}
    return [
        annotation(f"ProfilerStep#{step}", at, at + 999 + late),
        annotation("DistributedDataParallel.forward", *worked),
        event(operation, start, start + 5, **inputs),
        annotation(f"gloo:{name}", start + 1, end, **{"Input Dims": [[250]]}),
        annotation("Optimizer.step#SGD.step", at + 800 + late, at + 900 + late),
    ]


def test_gloo_records_peers_with_the_shapes(tmp_path: Path) -> None:
    documents = [
        document(rank, [e for n in range(4) for e in gloo_step(rank, n, 1200.0 * n, 100.0)])
        for rank in range(2)
    ]
    run = read(tmp_path, documents)
    assert origin(run).replayable
    assert origin(run).stages == (0, 1)
    timeline = build_timeline(run)
    assert timeline.step_wait[:, 1] * 1e6 == pytest.approx([270.0] * 4, abs=15.0)
    assert timeline.step_wait[:, 0] == pytest.approx([0.0] * 4, abs=1e-9)
