"""The trace is what Perfetto can open: JSON, nested, named, under a million events."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.analysis.evaluate.synthetic.run_generator import TraceSpec, generate_run
from laggard.analysis.formats.export import perfetto
from laggard.analysis.tables.columns import SpanColumns
from laggard.analysis.tables.load_run import RunData
from laggard.core.span_schema import NO_PEER, Lane, Phase


def written(run: RunData, folder: Path) -> tuple[dict[str, Any], perfetto.PerfettoExport]:
    result = perfetto.write_perfetto(run, folder / "trace.perfetto.json.gz")
    with gzip.open(result.path, "rt", encoding="utf-8") as trace:
        return json.load(trace), result


def bars(trace: dict[str, Any]) -> dict[tuple[int, int], list[tuple[int, int, str]]]:
    """(start, end, name) in nanoseconds per track, in file order."""
    tracks = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            start = round(event["ts"] * 1000)
            tracks[event["pid"], event["tid"]].append(
                (start, start + round(event["dur"] * 1000), event["name"])
            )
    return tracks


def assert_nested(tracks: dict[tuple[int, int], list[tuple[int, int, str]]]) -> None:
    for track, found in tracks.items():
        open_ends: list[int] = []
        for start, end, name in sorted(found, key=lambda bar: (bar[0], -bar[1])):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1], (track, name, start)
            open_ends.append(end)


def test_every_span_is_there_with_its_time_to_the_nanosecond(
    quickstart_run: RunData, tmp_path: Path
) -> None:
    trace, result = written(quickstart_run, tmp_path)
    assert len(trace["traceEvents"]) == result.events < perfetto.MOST_EVENTS
    assert result.note == ""
    forward = sorted(
        (s, e) for track in bars(trace).values() for s, e, name in track if name == "forward"
    )
    spans = quickstart_run.spans
    rows = spans.where(spans.phase == Phase.FORWARD.code)
    assert forward == sorted(zip(rows.start_ns.tolist(), rows.end_ns.tolist(), strict=True))


def test_bars_of_a_track_only_nest_and_steps_enclose_phases(
    quickstart_run: RunData, tmp_path: Path
) -> None:
    trace, _ = written(quickstart_run, tmp_path)
    tracks = bars(trace)
    assert_nested(tracks)
    steps = sum(name.startswith("step ") for track in tracks.values() for _, _, name in track)
    assert steps == len(quickstart_run.steps)


def test_processes_are_hosts_and_threads_are_ranks(quickstart_run: RunData, tmp_path: Path) -> None:
    trace, _ = written(quickstart_run, tmp_path)
    names = {
        e["args"]["name"]: e["pid"] for e in trace["traceEvents"] if e["name"] == "process_name"
    }
    assert {f"{host.host} ({host.tier})" for host in quickstart_run.hosts} == set(names) - {
        "training"
    }
    threads = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"]
    assert sorted(threads) == [f"rank {rank}" for rank in range(8)]


def test_loss_is_a_counter_without_what_json_cannot_say(
    quickstart_run: RunData, tmp_path: Path
) -> None:
    loss = quickstart_run.steps.loss.copy()
    loss[0] = np.nan
    run = replace(quickstart_run, steps=replace(quickstart_run.steps, loss=loss))
    trace, _ = written(run, tmp_path)
    counted = [e["args"]["loss"] for e in trace["traceEvents"] if e["ph"] == "C"]
    assert counted
    assert all(np.isfinite(counted))


def test_a_wait_is_as_long_as_the_last_rank_is_late(
    quickstart_run: RunData, tmp_path: Path
) -> None:
    trace, _ = written(quickstart_run, tmp_path)
    longest = max(e - s for track in bars(trace).values() for s, e, name in track if name == "wait")
    spans = quickstart_run.spans
    gradient = spans.where((spans.phase == Phase.COMM.code) & (spans.group == 1))
    start = gradient.start_ns.reshape(-1, 8)
    assert longest == (start.max(axis=1, keepdims=True) - start).max()


def test_a_long_run_loses_its_later_steps_and_says_so(
    quickstart_run: RunData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perfetto, "MOST_EVENTS", 5_000)
    trace, result = written(quickstart_run, tmp_path)
    assert result.events <= 5_000 + 100
    assert "left out" in result.note
    assert trace["otherData"]["note"] == result.note
    named = {
        int(n.split()[1])
        for track in bars(trace).values()
        for _, _, n in track
        if n.startswith("step ")
    }
    assert named == set(range(len(named)))


def test_host_names_are_quoted(tmp_path: Path) -> None:
    run = generate_run(TraceSpec(steps=20))
    evil = 'a"b\\c\n<script>'
    run = replace(run, hosts=(replace(run.hosts[0], host=evil), *run.hosts[1:]))
    trace, _ = written(run, tmp_path)
    assert f"{evil} (cloud)" in {
        e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"
    }


def test_a_run_without_spans_is_an_empty_trace(quickstart_run: RunData, tmp_path: Path) -> None:
    none = np.array([], dtype=np.int64)
    run = replace(quickstart_run, spans=quickstart_run.spans.where(none))
    trace, _ = written(run, tmp_path)
    assert not bars(trace)


def test_nothing_is_left_when_writing_fails(quickstart_run: RunData, tmp_path: Path) -> None:
    broken = replace(quickstart_run, hosts=())
    with pytest.raises(IndexError):
        perfetto.write_perfetto(broken, tmp_path / "t.json.gz")
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.sampled_from(Lane), st.integers(-50, 500), st.integers(0, 90)
        ),
        max_size=60,
    )
)
def test_any_overlap_is_spread_over_tracks(rows: list[tuple[int, Lane, int, int]]) -> None:
    host = generate_run(TraceSpec(steps=2)).hosts
    spans = _spans(rows)
    run = replace(generate_run(TraceSpec(steps=2)), spans=spans, hosts=host)
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        trace, _ = written(run, Path(folder))
    kept = {
        track: [bar for bar in found if not bar[2].startswith("step ")]
        for track, found in bars(trace).items()
    }
    assert_nested(kept)
    assert all(bar[0] >= 0 for found in kept.values() for bar in found)


def _spans(rows: list[tuple[int, Lane, int, int]]) -> SpanColumns:
    ordered = sorted(rows, key=lambda row: (row[0], row[2]))
    rank, lane, start, length = (
        np.array([int(r[i]) for r in ordered], dtype=np.int64) for i in range(4)
    )
    zeros = np.zeros(len(ordered), dtype=np.int64)
    return SpanColumns(
        step=zeros,
        rank=rank,
        lane=lane,
        phase=zeros + Phase.COMM.code,
        seq=zeros,
        start_ns=start,
        dur_ns=length,
        group=zeros - 1,
        peer=zeros + NO_PEER,
        bytes=zeros,
        work=zeros,
        flags=zeros,
    )
