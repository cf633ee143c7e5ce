"""Damaged traces of several process groups are read or refused, never with another exception."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.analysis.findings.analyze_run import analyze_run
from laggard.analysis.formats.registry import open_run
from laggard.analysis.tables.timelines.build_timeline import build_timeline
from laggard.core.errors import RunFolderError, TraceFormatError
from laggard.core.span_schema import Lane
from tests.analysis.kineto_traces import Document, host_document, write
from tests.analysis.parallel_traces import Job, job_documents

JOBS: tuple[list[Document], ...] = (
    job_documents(Job(world=4, tensor=2, steps=2)),
    job_documents(Job(world=2, steps=3, clock=lambda rank, t: t + 5000 * rank)),
    [host_document(rank, steps=2) for rank in range(2)],
)
ARGUMENTS = (
    "Process Group Name",
    "Process Group Ranks",
    "Group size",
    "Collective name",
    "correlation",
)
NAMES = (
    "ProfilerStep#1",
    "Optimizer.step#SGD",
    "gc",
    "record_param_comms",
    "ncclKernel_SendRecv",
    "gloo:send",
    "c10d::allreduce_",
    "autograd::engine::evaluate_function: X",
)
values = (
    st.none()
    | st.integers(-3, 5)
    | st.sampled_from([2**31, 2**62, 2**80, "[0, 1]", "[0, 2, ..., 6]", "tp", "send", "[0"])
    | st.lists(st.integers(-1, 4), max_size=4)
    | st.floats(allow_nan=False)
)


@st.composite
def damaged(draw: st.DrawFn) -> list[Document]:
    documents = copy.deepcopy(draw(st.sampled_from(JOBS)))
    if draw(st.booleans()):
        documents = documents[draw(st.integers(0, len(documents) - 1)) :]
    for _ in range(draw(st.integers(0, 6))):
        made: dict[str, Any] = draw(st.sampled_from(documents))
        events = made["traceEvents"]
        each = events[draw(st.integers(0, len(events) - 2))]
        match draw(
            st.sampled_from(("drop", "argument", "time", "name", "config", "world", "steps"))
        ):
            case "drop":
                events.remove(each)
            case "argument":
                each["args"][draw(st.sampled_from(ARGUMENTS))] = draw(values)
            case "time":
                each["ts"] += draw(st.floats(-1e4, 1e4))
            case "name":
                each["name"] = draw(st.sampled_from(NAMES))
            case "config":
                entry = {"pg_name": draw(values), "ranks": draw(values), "pg_size": draw(values)}
                made["distributedInfo"]["pg_config"] = [entry, draw(values)]
            case "world":
                made["distributedInfo"][draw(st.sampled_from(("rank", "world_size")))] = draw(
                    values
                )
            case _:
                made["traceEvents"] = [e for e in events if not e["name"].startswith("Profiler")]
    return documents


@given(damaged())
@settings(max_examples=120, deadline=None)
def test_damaged_traces_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, documents: list[Document]
) -> None:
    folder = write(tmp_path_factory.mktemp("any") / "traces", documents)
    try:
        run = open_run(folder)
    except TraceFormatError:
        return
    assert (run.spans.dur_ns >= 0).all()
    for rank in range(run.world_size):
        for step in set(run.spans.step.tolist()):
            own = run.spans.where(
                (run.spans.rank == rank) & (run.spans.step == step) & (run.spans.lane == Lane.MAIN)
            )
            assert (own.start_ns[1:] >= own.end_ns[:-1]).all()
    try:
        analyze_run(run)
    except RunFolderError:
        return
    timeline = build_timeline(run)
    assert (timeline.step_wait >= -1e-9).all()
