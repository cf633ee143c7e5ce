"""Horovod's timeline: files as its writer makes them, who was late, and what is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.analysis.formats.registry import detect_format, open_run
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.build_timeline import build_timeline
from laggard.core.errors import TraceFormatError
from laggard.core.span_schema import Lane, Phase
from tests.analysis.horovod_timelines import STEP_US, Event, negotiation, training, write


def notes(run: RunData) -> str:
    assert run.record is not None
    assert run.record.origin is not None
    assert run.record.origin.format == "horovod"
    return " ".join(run.record.origin.notes)


@given(st.lists(st.integers(0, 5000), min_size=2, max_size=5))
@settings(max_examples=20, deadline=None)
def test_the_last_tick_is_the_late_rank(
    tmp_path_factory: pytest.TempPathFactory, late: list[int]
) -> None:
    run = open_run(write(tmp_path_factory.mktemp("horovod") / "timeline.json", training(late)))
    assert run.world_size == len(late)
    timeline = build_timeline(run)
    expected = [(max(late) - each) * 1e-6 for each in late]
    assert timeline.step_wait == pytest.approx(np.array([expected] * 4), abs=1e-9)
    assert timeline.step_transfer == pytest.approx(np.full((4, len(late)), 500e-6), abs=1e-9)


def test_a_step_is_work_then_one_wait_and_its_tensors(tmp_path: Path) -> None:
    run = open_run(write(tmp_path / "timeline.json", training([0, 3000])))
    rows = run.spans.where((run.spans.rank == 0) & (run.spans.step == 1))
    main = rows.where(rows.lane == Lane.MAIN)
    assert [tuple(Phase)[code] for code in main.phase] == [Phase.BACKWARD, Phase.COMM]
    assert main.dur_ns.tolist() == [(STEP_US - 3500) * 1000, 3_500_000]
    assert int((rows.lane == Lane.BUCKETS).sum()) == 2
    assert "counts as backward" in notes(run)
    assert "were left out: 1." in notes(run)


ENDS = {
    "whole": lambda text: text,
    "without its end": lambda text: text[:-1],
    "with a comma": lambda text: text[:-1] + ",",
    "in an event": lambda text: text + ',{"ph": "X", "na',
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("zipped", [False, True])
def test_a_timeline_may_lack_its_end(tmp_path: Path, end: str, *, zipped: bool) -> None:
    text = ENDS[end](write(tmp_path / "timeline.json", training([0, 10])).read_text()[:-1] + "]")
    if end == "in an event":
        text = text.replace("]," + '{"ph": "X", "na', ',{"ph": "X", "na')
    file = tmp_path / ("cut.json.gz" if zipped else "cut.json")
    file.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    assert len(set(open_run(file).steps.step.tolist())) == 4


def test_an_incomplete_negotiation_is_left_out_and_told(tmp_path: Path) -> None:
    events = [*training([0, 10], steps=3), *negotiation(2, [(1, 5 * STEP_US)])]
    assert "were left out: 2." in notes(open_run(write(tmp_path / "timeline.json", events)))


def test_cached_operations_are_told(tmp_path: Path) -> None:
    cached = [e for e in negotiation(2, [(0, 9 * STEP_US), (1, 9 * STEP_US)]) if "dur" not in e]
    events = [*training([0, 10]), *cached[2:]]
    run = open_run(write(tmp_path / "timeline.json", events))
    assert (
        "nothing is known of who was late: 1. To see them, record it with HOROVOD_CACHE"
        in notes(run)
    )


REFUSED: dict[str, tuple[list[Event], str]] = {
    "no ticks": (
        [e for e in training([0, 1]) if e["ph"] != "X"],
        "no negotiation has ticks of sev",
    ),
    "never all": (
        [*negotiation(1, [(0, 5)]), *negotiation(1, [(2, 9)])],
        "no negotiation has a tick of each of 3 ranks",
    ),
    "no rank": (
        [*training([0, 1])[:9], {"ph": "X", "name": "one", "ts": 5, "pid": 1, "dur": 0}],
        "event 9: name 'one' is not a rank",
    ),
    "huge rank": (
        [*training([0, 1])[:9], {"ph": "X", "name": "9" * 5000, "ts": 5, "pid": 1, "dur": 0}],
        "event 9: name '9999",
    ),
    "no time": ([*training([0, 1]), {"ph": "E", "ts": "x", "pid": 1}], "ts 'x' is not an integer"),
    "number": ([*training([0, 1]), 5], ": 5 is not an object"),  # type: ignore[list-item]
}


@pytest.mark.parametrize("kind", REFUSED)
def test_bad_timelines_are_refused_with_their_place(tmp_path: Path, kind: str) -> None:
    events, says = REFUSED[kind]
    with pytest.raises(TraceFormatError, match=says) as refused:
        open_run(write(tmp_path / "timeline.json", events))
    assert refused.value.fix


def test_a_timeline_is_recognized_by_its_beginning(tmp_path: Path) -> None:
    started = {"name": "process_name", "ph": "M", "pid": 0,
               "args": {"start_time_since_epoch_in_micros": 1}}  # fmt: skip
    assert detect_format(write(tmp_path / "a.json", [started])).name == "horovod"
    assert detect_format(write(tmp_path / "b.json", [{"ph": "X"}])).name == "kineto"


values = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from([[], ["B"], {}, {"a": ["E"]}, "9" * 5000])
)


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_whatever_is_in_a_timeline_it_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    events = training([0, 30], steps=2)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(events) - 1))
        if data.draw(st.booleans()):
            events.pop(place)
        else:
            key = data.draw(st.sampled_from(["ph", "name", "ts", "pid"]))
            events[place][key] = data.draw(values | st.sampled_from(["B", "E", "X", "7", 0, 1, 2]))
    path = tmp_path_factory.mktemp("any") / "timeline.json"
    try:
        run = open_run(write(path, events))
    except TraceFormatError:
        return
    assert (run.spans.dur_ns >= 0).all()
