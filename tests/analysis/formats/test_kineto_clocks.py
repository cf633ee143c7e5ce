"""Clocks of the ranks of torch.profiler's traces, aligned by the ends of collectives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.analysis.findings.analyze_run import analyze_run
from laggard.analysis.formats.import_run.clock_offsets import CollectiveEnd, align_clocks
from laggard.analysis.formats.registry import open_run
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.build_timeline import build_timeline
from laggard.core.span_schema import Flag
from tests.analysis.kineto_traces import Document, host_document, write
from tests.analysis.parallel_traces import Job, job_documents, true_clock

MS, S = 1e3, 1e6
SLOW_US = 600.0
Clock = Callable[[int, float], float]


def ahead(by_us: Mapping[int, float], ppm: Mapping[int, float] | None = None) -> Clock:
    drift = ppm or {}
    return lambda rank, t: t * (1 + drift.get(rank, 0.0) * 1e-6) + by_us.get(rank, 0.0)


def read(folder: Path, documents: list[Document]) -> RunData:
    return open_run(write(folder, documents))


def notes(run: RunData) -> str:
    assert run.record is not None
    assert run.record.origin is not None
    return " ".join(run.record.origin.notes)


def costs(run: RunData) -> dict[int | None, float]:
    """Return the share of the makespan that each found rank costs."""
    result = analyze_run(run)
    return {each.rank: each.cost_s / result.makespan_s for each in result.stragglers}


CLOCKS = {
    "5 ms": ahead({1: 5 * MS}),
    "-5 ms": ahead({1: -5 * MS}),
    "10 s": ahead({1: 10 * S}),
    "50 ppm": ahead({}, {1: 50.0}),
    "10 s and 50 ppm": ahead({1: 10 * S, 2: -3 * MS}, {1: 50.0}),
}


@pytest.mark.parametrize("host", ["node-1", ""])
@pytest.mark.parametrize("name", CLOCKS)
def test_a_late_rank_is_found_with_the_same_cost(tmp_path: Path, name: str, host: str) -> None:
    """One host name, or none, does not prevent the proof."""
    hosts = dict.fromkeys(range(3), host)
    job = Job(world=3, steps=60, slow_us={1: SLOW_US}, hosts=hosts)
    expected = costs(read(tmp_path / "true", job_documents(job)))
    assert set(expected) == {1}
    moved = Job(world=3, steps=60, slow_us={1: SLOW_US}, hosts=hosts, clock=CLOCKS[name])
    run = read(tmp_path / "moved", job_documents(moved))
    found = costs(run)
    assert set(found) == {1}
    assert found[1] == pytest.approx(expected[1], abs=0.002)
    assert "aligned by the ends of collectives" in notes(run)
    waits = build_timeline(run).step_wait * 1e6
    assert waits[:, 0] == pytest.approx(2 * SLOW_US, abs=1.0)
    assert waits[:, 1] == pytest.approx(0.0, abs=1.0)


@pytest.mark.parametrize("name", CLOCKS)
def test_clocks_alone_make_no_straggler(tmp_path: Path, name: str) -> None:
    run = read(tmp_path / "x", job_documents(Job(world=3, steps=60, clock=CLOCKS[name])))
    assert analyze_run(run).findings == ()


@pytest.mark.parametrize("host", ["node-1", ""])
@pytest.mark.parametrize("ahead_us", [5 * MS, -5 * MS, 10 * S])
def test_ranks_that_compute_on_their_hosts(tmp_path: Path, ahead_us: float, host: str) -> None:
    run = read(
        tmp_path / "x",
        [
            host_document(0, steps=20, host=host),
            host_document(1, steps=20, late=100, host=host, ahead_us=ahead_us),
        ],
    )
    assert run.hosts[1].clock_offset_ns == pytest.approx(ahead_us * 1000, abs=1)
    assert build_timeline(run).step_wait * 1e6 == pytest.approx(
        np.array([[100.0, 0.0]] * 20), abs=1e-3
    )


def test_one_clock_is_left_as_it_is(tmp_path: Path) -> None:
    for name, slow in (("clean", {}), ("slow", {1: SLOW_US})):
        run = read(tmp_path / name, job_documents(Job(world=3, steps=60, slow_us=slow)))
        assert "clocks" not in notes(run)
        assert not (run.spans.flags & Flag.CLOCK_SUSPECT).any()
        assert all(host.clock_offset_ns == 0 for host in run.hosts)


def test_offset_and_drift_are_told(tmp_path: Path) -> None:
    clock = ahead({1: 10 * S}, {2: 50.0})
    run = read(tmp_path / "x", job_documents(Job(world=3, steps=200, clock=clock)))
    text = notes(run)
    assert "rank 1 by 1e+04 ms," in text
    assert "with a drift of 50 ppm" in text
    assert "The remaining error is up to" in text
    assert run.hosts[1].clock_offset_ns == pytest.approx(10e9, abs=1000)


def test_ranks_are_related_through_groups(tmp_path: Path) -> None:
    """Ranks 0 and 3 share no group; ranks 1 and 2 relate them."""
    clock = ahead({1: 5 * MS, 3: 2 * S})
    job = Job(world=4, tensor=2, steps=30, slow_us={3: SLOW_US}, clock=clock)
    run = read(tmp_path / "x", job_documents(job))
    assert run.hosts[3].clock_offset_ns == pytest.approx(2e9, abs=1000)
    assert run.hosts[2].clock_offset_ns == 0
    assert set(costs(run)) == {3}


def test_ranks_without_a_common_collective_are_told(tmp_path: Path) -> None:
    job = Job(world=4, tensor=2, steps=30, hosts={0: "a", 1: "a", 2: "b", 3: "b"})
    documents = job_documents(job)
    for made in documents:
        made["traceEvents"] = [
            each
            for each in made["traceEvents"]
            if each.get("args", {}).get("Process Group Name") != "dp"
        ]
    run = read(tmp_path / "x", documents)
    assert "No collective relates rank 2, 3 to rank 0" in notes(run)


ENDS = np.arange(20) * 50_000_000


@given(
    st.integers(-(10**10), 10**10),
    st.floats(-80, 80),
    st.lists(st.integers(-3000, 3000), min_size=20, max_size=20),
)
@settings(max_examples=60, deadline=None)
def test_any_offset_and_drift_is_recovered(
    offset_ns: int, ppm: float, jitter_ns: list[int]
) -> None:
    """Up to the jitter of the ends; an offset below a millisecond needs different hosts."""
    base = 1_700_000_000_000_000_000
    true = [base + int(end) for end in ENDS]
    own = [
        base + round(int(end) * (1 + ppm * 1e-6)) + offset_ns + jitter
        for end, jitter in zip(ENDS, jitter_ns, strict=True)
    ]

    def to_ends(times: list[int]) -> dict[object, CollectiveEnd]:
        return {n: CollectiveEnd(t - 1_000_000, t, t) for n, t in enumerate(times)}

    clocks = align_clocks({0: to_ends(true), 1: to_ends(own)}, {0: "a", 1: "b"})
    assert clocks.offsets[0].is_zero
    corrected = np.array([clocks.offsets[1].correct(t) for t in own])
    error_ns = np.abs(corrected - np.array(true))
    # A drift below the least one that is applied remains in the differences.
    assert error_ns.max() <= 2 * 3000 + 2_000 + 8 * 3000
    assert np.median(error_ns) <= clocks.offsets[1].error_ns


def test_ranks_of_one_host_have_one_clock() -> None:
    """Although the ends that each of them recorded have jitter of their own."""
    jitter = np.random.default_rng(2).integers(-40_000, 40_000, (4, 100))

    def to_ends(rank: int) -> dict[object, CollectiveEnd]:
        ahead_ns = 5_000_000_000 if rank > 1 else 0
        times = [10**8 * n + ahead_ns + int(late) for n, late in enumerate(jitter[rank])]
        return {n: CollectiveEnd(t - 10**6, t, t) for n, t in enumerate(times)}

    ends = {rank: to_ends(rank) for rank in range(4)}
    clocks = align_clocks(ends, {0: "a", 1: "a", 2: "b", 3: "b"})
    assert clocks.offsets[0] == clocks.offsets[1]
    assert clocks.offsets[2] == clocks.offsets[3]
    assert clocks.offsets[2].largest_ns == pytest.approx(5e9, abs=40_000)
    assert clocks.unrelated == clocks.contradictory == ()


def test_jitter_of_one_clock_proves_nothing() -> None:
    jitter = np.random.default_rng(1).normal(0, 300_000, 200)
    ends = [
        {
            n: CollectiveEnd(t, t + 20_000_000 + round(late), t + 20_000_000 + round(late))
            for n, (t, late) in enumerate(zip(range(0, 200 * 10**8, 10**8), own, strict=True))
        }
        for own in (np.zeros(200), np.abs(jitter))
    ]
    clocks = align_clocks({0: ends[0], 1: ends[1]}, {0: "a", 1: "a"})
    assert clocks.offsets[1].is_zero


def test_collectives_that_contradict_each_other_are_not_priced(tmp_path: Path) -> None:
    """Beside the all-reduce of a step, each rank recorded one that the other one did not."""
    documents = job_documents(Job(world=2, steps=40, slow_us={1: SLOW_US}, layers=4))
    for rank, made in enumerate(documents):
        reduced = [each for each in made["traceEvents"] if each["name"].startswith("nccl")]
        made["traceEvents"] += [
            {**each, "ts": each["ts"] + (-9_000, 9_000)[rank], "dur": 1.0} for each in reduced
        ]
    run = read(tmp_path / "x", documents)
    assert "do not agree with those of the other ranks" in notes(run)
    assert run.record is not None
    assert run.record.origin is not None
    assert not run.record.origin.replayable


def test_the_true_clock_is_the_default() -> None:
    assert Job().clock is true_clock
