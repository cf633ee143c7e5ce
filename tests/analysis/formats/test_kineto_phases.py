"""Host time inside phases: idle devices, stalls between operations and garbage collection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from laggard.analysis.formats.registry import open_run
from laggard.analysis.tables.columns import SpanColumns
from laggard.analysis.tables.load_run import RunData
from laggard.core.span_schema import Lane, Phase
from tests.analysis.kineto_traces import (
    GLOO,
    STREAM,
    annotation,
    document,
    event,
    host_document,
    write,
)

US = 1000
PHASES = tuple(Phase)
GARBAGE = (
    ("gc", "user_annotation"),
    ("gc.collect", "user_annotation"),
    ("Garbage collection", "user_annotation"),
    ("GARBAGE COLLECTION", "cpu_op"),
    ("Runtime Triggered gc", "cpu_op"),
    ("Python GC", "python_function"),
    ("<built-in function collect>", "python_function"),
)


def read(tmp_path: Path, *documents: dict[str, Any], name: str = "traces") -> RunData:
    return open_run(write(tmp_path / name, documents))


def lane(run: RunData, step: int, rank: int = 0) -> list[tuple[str, float, float]]:
    rows: SpanColumns = run.spans.where(
        (run.spans.rank == rank) & (run.spans.step == step) & (run.spans.lane == Lane.MAIN)
    )
    return [
        (PHASES[code].value, start / US, end / US)
        for code, start, end in zip(
            rows.phase.tolist(), rows.start_ns.tolist(), rows.end_ns.tolist(), strict=True
        )
    ]


def seconds_of(run: RunData, phase: Phase) -> float:
    rows = (run.spans.phase == phase.code) & (run.spans.lane == Lane.MAIN)
    return float(run.spans.dur_ns[rows].sum()) / 1e9


def device_document(gap_us: float, kernels: int, length_us: float = 1.0) -> dict[str, Any]:
    """A backward pass of short kernels, each `gap_us` after the one before."""
    period = length_us + gap_us
    events = [
        annotation("ProfilerStep#1", 0, 100),
        event("aten::linear", 1, 3),
        event("autograd::engine::evaluate_function: Mm", 5, 90, tid=11),
        event("cudaLaunchKernel", 2, 2.5, cat="cuda_runtime", correlation=0),
        event("gemm", 100, 200, cat="kernel", tid=STREAM, correlation=0),
    ]
    for n in range(kernels):
        events += [
            event("cudaLaunchKernel", 6 + n, 6.5 + n, cat="cuda_runtime", correlation=n + 1),
            event(
                "backward",
                200 + n * period,
                200 + n * period + length_us,
                cat="kernel",
                tid=STREAM,
                correlation=n + 1,
            ),
        ]
    return document(0, events, world=1)


def test_the_idle_device_is_no_computation(tmp_path: Path) -> None:
    """50 kernels of 1 us over 7.3 ms."""
    run = read(tmp_path, device_document(gap_us=148.0, kernels=50))
    assert seconds_of(run, Phase.BACKWARD) == pytest.approx(50e-6, rel=1e-6)
    assert seconds_of(run, Phase.FORWARD) == pytest.approx(100e-6, rel=1e-6)


@pytest.mark.parametrize(("gap_us", "spans"), [(0.0, 1), (20.0, 1), (20.001, 30), (500.0, 30)])
def test_kernels_are_merged_across_short_gaps(tmp_path: Path, gap_us: float, spans: int) -> None:
    run = read(tmp_path, device_document(gap_us, kernels=30))
    backward = [each for each in lane(run, 1) if each[0] == "backward"]
    assert len(backward) == spans


def with_events(*events: dict[str, Any]) -> dict[str, Any]:
    made = host_document(0, steps=3)
    made["distributedInfo"]["world_size"] = 1
    made["traceEvents"] += events
    return made


@pytest.mark.parametrize(("name", "cat"), GARBAGE)
def test_garbage_collection_is_cut_out_of_the_phase(tmp_path: Path, name: str, cat: str) -> None:
    """In the forward of step 1, and in the backward pass of step 2 on autograd's thread."""
    clean = read(tmp_path, with_events(), name="clean")
    run = read(
        tmp_path,
        with_events(event(name, 120, 150, cat=cat), event(name, 1250, 1280, cat=cat)),
    )
    assert ("other", 120, 150) in lane(run, 1)
    assert [each for each in lane(run, 1) if each[0] == "forward"] == [
        ("forward", 100, 120),
        ("forward", 150, 200),
    ]
    assert lane(run, 2)[3:6] == [
        ("backward", 1210, 1250),
        ("other", 1250, 1280),
        ("backward", 1280, 1380),
    ]
    assert lane(run, 3) == lane(clean, 3)
    assert seconds_of(run, Phase.OTHER) - seconds_of(clean, Phase.OTHER) == pytest.approx(60e-6)


def test_garbage_collection_between_operations(tmp_path: Path) -> None:
    run = read(tmp_path, with_events(annotation("gc", 710, 716)))
    assert ("other", 710, 716) in lane(run, 1)


@pytest.mark.parametrize(
    ("name", "cat", "tid"),
    [
        ("gcn_convolution", "cpu_op", 10),
        ("collect", "cpu_op", 10),
        ("<built-in function sleep>", "python_function", 10),
        ("Python GC", "python_function", GLOO),
    ],
)
def test_other_events_are_no_garbage_collection(
    tmp_path: Path, name: str, cat: str, tid: int
) -> None:
    clean = read(tmp_path, with_events(), name="clean")
    run = read(tmp_path, with_events(event(name, 120, 150, cat=cat, tid=tid)))
    assert lane(run, 1) == lane(clean, 1)


def test_garbage_collection_during_a_collective_is_no_wait(tmp_path: Path) -> None:
    """The thread collects garbage after its launch, and waits only afterwards."""
    made = with_events(annotation("gc", 400, 550))
    run = read(tmp_path, made)
    assert ("comm", 550, 700) in lane(run, 1)
    assert ("other", 400, 550) in lane(run, 1)


def stalled(gap_us: float, *, inside: bool = False) -> dict[str, Any]:
    """Two forward operations with a stall between them, or inside the first one."""
    end = 200 + (gap_us if inside else 0)
    return document(
        0,
        [
            annotation("ProfilerStep#1", 0, 20_000),
            event("aten::linear", 100, end),
            event("aten::linear", 200 + gap_us, 300 + gap_us),
        ],
        world=1,
    )


@pytest.mark.parametrize(
    ("gap_us", "inside", "forward_us"),
    [
        (900.0, False, 1100.0),
        (1000.0, False, 1200.0),
        (1001.0, False, 200.0),
        (5000.0, False, 200.0),
        (5000.0, True, 5200.0),
    ],
)
def test_a_stall_between_operations_is_unrecorded(
    tmp_path: Path, gap_us: float, forward_us: float, *, inside: bool
) -> None:
    run = read(tmp_path, stalled(gap_us, inside=inside))
    assert seconds_of(run, Phase.FORWARD) == pytest.approx(forward_us / 1e6, rel=1e-6)


def test_a_backward_pass_of_the_host_stays_whole(tmp_path: Path) -> None:
    backward = "autograd::engine::evaluate_function: Mm"
    events = [
        annotation("ProfilerStep#1", 0, 20_000),
        event("aten::linear", 100, 200),
        event(backward, 300, 400, tid=11),
        event(backward, 5400, 5500, tid=11),
    ]
    run = read(tmp_path, document(0, events, world=1))
    assert seconds_of(run, Phase.BACKWARD) == pytest.approx(5200e-6, rel=1e-6)


def test_a_two_microsecond_copy_does_not_hide_a_wait(tmp_path: Path) -> None:
    """Amid the wait for the late rank, and just before its end."""
    documents = [host_document(0), host_document(1, late=100)]
    documents[0]["traceEvents"] += [
        event("aten::copy_", start, start + 2, tid=12) for start in (500, 699)
    ]
    assert ("comm", 380, 700) in lane(read(tmp_path, *documents), 1)
    documents[0]["traceEvents"].append(event("aten::linear", 500, 650, tid=12))
    assert ("comm", 650, 700) in lane(read(tmp_path, *documents), 1)
