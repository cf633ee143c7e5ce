"""torch.profiler's format: real traces of a real training, documents made by hand, and every way in
which a file is not what it says."""

from __future__ import annotations

import enum
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.analysis.formats.registry import detect_format, open_run
from laggard.analysis.tables.columns import SpanColumns
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.build_timeline import build_timeline
from laggard.core.errors import TraceFormatError
from laggard.core.span_schema import Flag, Lane, Phase
from tests.analysis.kineto_traces import (
    STEP_US,
    annotation,
    device_step,
    document,
    event,
    host_document,
    write,
)

US = 1000
PHASES = tuple(Phase)


def read(tmp_path: Path, *documents: dict[str, Any], zipped: bool = False) -> RunData:
    return open_run(write(tmp_path / "traces", documents, zipped=zipped))


def lane(run: RunData, rank: int, step: int) -> list[tuple[str, float, float]]:
    """The main lane of a rank's step: phase, start and end in microseconds.

    The empty span that ends a step is left out.
    """
    rows: SpanColumns = run.spans.where(
        (run.spans.rank == rank) & (run.spans.step == step) & (run.spans.lane == Lane.MAIN)
    )
    if rows.dur_ns[-1] == 0:
        rows = rows.where(np.s_[:-1])
    return [
        (PHASES[code].value, start / US, end / US)
        for code, start, end in zip(
            rows.phase.tolist(), rows.start_ns.tolist(), rows.end_ns.tolist(), strict=True
        )
    ]


@pytest.mark.parametrize("zipped", [False, True])
def test_every_phase_of_a_host_by_hand(tmp_path: Path, *, zipped: bool) -> None:
    run = read(tmp_path, host_document(0), host_document(1, late=100), zipped=zipped)
    assert lane(run, 0, 1) == [
        ("fetch", 0, 50),
        ("prep", 60, 80),
        ("forward", 100, 200),
        ("backward", 210, 380),
        ("comm", 380, 700),
        ("backward", 700, 705),
        ("optimizer", 710, 800),
        ("other", 820, 830),
    ]
    assert lane(run, 1, 2)[4] == ("comm", 1480, 1700)
    assert run.spans.bytes.max() == 1000
    timeline = build_timeline(run)
    assert timeline.step_wait * 1e6 == pytest.approx(np.array([[100.0, 0.0]] * 4), abs=1e-3)
    assert timeline.step_transfer * 1e6 == pytest.approx(np.full((4, 2), 220.0), abs=1e-3)


@pytest.mark.parametrize("late_us", [3, 50, 700])
def test_a_thread_that_is_late_to_say_that_a_collective_is_over_holds_nobody_up(
    tmp_path: Path, late_us: int
) -> None:
    """On a busy machine gloo's thread may end its record after the training thread has gone on,
    even to the next step."""
    documents = [host_document(rank) for rank in range(2)]
    for name in ("in time", "late"):
        (tmp_path / name).mkdir()
    expected = read(tmp_path / "in time", *documents)
    for event_ in documents[0]["traceEvents"]:
        if event_["name"] == "gloo:all_reduce":
            event_["dur"] += late_us
    late = read(tmp_path / "late", *documents)
    for step in (1, 2):
        found = {name: end - start for name, start, end in lane(late, 0, step)}
        usual = {name: end - start for name, start, end in lane(expected, 0, step)}
        assert found == {name: pytest.approx(seconds, abs=1.5) for name, seconds in usual.items()}
    main = late.spans.where((late.spans.lane == Lane.MAIN) & (late.spans.rank == 0))
    assert (main.start_ns[1:] >= main.end_ns[:-1]).all()


def test_annotations_named_like_phases_are_phases(tmp_path: Path) -> None:
    events = [
        annotation("ProfilerStep#3", 0, 900),
        annotation("data", 0, 100),
        annotation("forward", 100, 300),
        event("aten::linear", 120, 200),
        annotation("backward", 300, 500),
        annotation("## optimizer ##", 500, 600),
        annotation("checkpoint", 600, 700),
    ]
    names = [name for name, _, _ in lane(read(tmp_path, document(0, events, world=1)), 0, 3)]
    assert names == ["fetch", "forward", "backward", "optimizer", "checkpoint"]


def test_a_device_counts_by_its_kernels(tmp_path: Path) -> None:
    """Kernels have the phase of the call that launched them; the reduction counts where no kernel
    ran beside it. Zero is the first fetch."""
    documents = []
    for rank in range(2):
        made = document(
            rank,
            [
                e
                for n in range(3)
                for e in device_step(n, n * STEP_US, n * STEP_US + 500 + 100 * (n % 2))
            ],
        )
        made["deviceProperties"] = [{"id": 0, "name": "NVIDIA H200"}]
        documents.append(made)
    run = read(tmp_path, *documents)
    assert {host.device_class for host in run.hosts} == {"NVIDIA H200"}
    assert lane(run, 0, 1) == [
        ("fetch", 1000, 1007),
        ("h2d", 1029, 1049),
        ("forward", 1049, 1249),
        ("backward", 1249, 1449),
        ("comm", 1449, 1599),
        ("optimizer", 1599, 1699),
    ]
    beside = run.spans.where(run.spans.lane == Lane.BUCKETS)
    assert beside.bytes.tolist() == [4000] * 6
    assert (beside.flags == Flag.ASYNC).all()


def test_a_device_s_gloo_collectives_are_the_host_s(tmp_path: Path) -> None:
    """From their launch on the host, or the device's last work before their end, to their end."""

    def made(rank: int) -> dict[str, Any]:
        events = [e for e in device_step(0, 0, 500) if not e["name"].startswith("nccl")]
        launch = event(
            "c10d::allreduce_", 70, 72, **{"Input Dims": [[[25]]], "Input type": ["TensorList"]}
        )
        ran = annotation(
            "gloo:all_reduce", 75, 480, tid=20, **{"Input Dims": [[25]], "Input type": ["float"]}
        )
        return document(rank, [*events, launch, ran])

    spans = lane(read(tmp_path, made(0), made(1)), 0, 0)
    assert spans[-2:] == [("comm", 449, 479), ("optimizer", 499, 599)]


def test_gloo_s_threads_may_begin_collectives_out_of_order(tmp_path: Path) -> None:
    """Two broadcasts in flight: by their sizes each is matched with its launch, so ranks agree on
    who met whom."""
    shape: Callable[[int], dict[str, Any]] = lambda n: {  # noqa: E731
        "Input Dims": [[[n]]],
        "Input type": ["TensorList"],
    }
    ran: Callable[[int], dict[str, Any]] = lambda n: {"Input Dims": [[n]], "Input type": ["float"]}  # noqa: E731

    def made(rank: int, first: int, second: int) -> dict[str, Any]:
        return document(
            rank,
            [
                annotation("ProfilerStep#1", 0, 900),
                event("c10d::broadcast_", 10, 12, **shape(100)),
                event("c10d::broadcast_", 20, 22, **shape(7)),
                annotation("gloo:broadcast", 30, 80, tid=20, **ran(first)),
                annotation("gloo:broadcast", 31, 81, tid=21, **ran(second)),
                event("aten::linear", 100, 200),
            ],
        )

    run = read(tmp_path, made(0, 100, 7), made(1, 7, 100))
    comm = run.spans.where((run.spans.phase == Phase.COMM.code) & (run.spans.lane == Lane.MAIN))
    assert sorted(zip(comm.rank, comm.group, comm.bytes, strict=True)) == [
        (0, 0, 400),
        (0, 1, 28),
        (1, 0, 400),
        (1, 1, 28),
    ]


@given(st.lists(st.integers(0, 150), min_size=2, max_size=5))
@settings(max_examples=15, deadline=None)
def test_waits_add_up_to_who_was_late(
    tmp_path_factory: pytest.TempPathFactory, late: list[int]
) -> None:
    documents = [host_document(rank, late=lateness) for rank, lateness in enumerate(late)]
    for made in documents:
        made["distributedInfo"]["world_size"] = len(late)
    run = read(tmp_path_factory.mktemp("late"), *documents)
    timeline = build_timeline(run)
    expected = [max(late) - lateness for lateness in late]
    assert timeline.step_wait * 1e6 == pytest.approx(
        np.array([expected] * 4, dtype=np.float64), abs=1e-3
    )


def notes(run: RunData) -> str:
    assert run.record is not None
    assert run.record.origin is not None
    return " ".join(run.record.origin.notes)


def test_clocks_of_other_hosts_are_brought_together_and_told(tmp_path: Path) -> None:
    ahead_us = 5_000_000.0
    run = read(
        tmp_path, host_document(0), host_document(1, late=100, host="node-2", ahead_us=ahead_us)
    )
    assert "do not relate the clocks of their 2 hosts" in notes(run)
    assert run.hosts[1].clock_offset_ns == ahead_us * US
    assert build_timeline(run).step_wait[:, 0] * 1e6 == pytest.approx([100] * 4, abs=1e-3)
    assert (run.spans.flags[run.spans.rank == 1] & Flag.CLOCK_SUSPECT).all()
    same = open_run(write(tmp_path / "same", [host_document(0), host_document(1)]))
    assert "clocks" not in notes(same)


def test_steps_that_not_all_recorded_are_left_out_and_told(tmp_path: Path) -> None:
    run = read(tmp_path, host_document(0, steps=4), host_document(1, steps=3))
    assert np.unique(run.steps.step).tolist() == [1, 2, 3]
    assert "Not every rank recorded step 4" in notes(run)


def test_one_rank_alone_needs_no_number(tmp_path: Path) -> None:
    made = host_document(0)
    del made["distributedInfo"]
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(made))
    assert open_run(file).world_size == 1


def _file(folder: Path, rank: int = 1) -> Path:
    return folder / f"worker{rank}.json"


def _edit(folder: Path, change: Callable[[dict[str, Any]], object], rank: int = 1) -> None:
    made = json.loads(_file(folder, rank).read_text())
    change(made)
    _file(folder, rank).write_text(json.dumps(made))


def _event(number: int, key: str, value: Any) -> Callable[[Path], None]:
    return lambda folder: _edit(
        folder, lambda made: made["traceEvents"][number].update({key: value})
    )


def _cut(folder: Path) -> None:
    content = _file(folder).read_bytes()
    _file(folder).write_bytes(content[: len(content) // 2])


def _zip(folder: Path, keep: float) -> None:
    content = gzip.compress(_file(folder).read_bytes())
    _file(folder).unlink()
    (folder / "worker1.json.gz").write_bytes(content[: int(len(content) * keep)])


def _without_gloo(made: dict[str, Any]) -> None:
    made["traceEvents"] = [e for e in made["traceEvents"] if not e["name"].startswith("gloo:")]


class Fault(enum.Enum):
    """What is done to the good traces of two ranks, and what must be said of it."""

    CUT = (_cut, r"worker1.json: byte \d+ of \d+: the JSON is truncated")
    NO_JSON = (lambda f: _file(f).write_text("{]"), "byte 1 of 2: .*JSON")
    NO_TEXT = (lambda f: _file(f).write_bytes(b"\x80\x81"), "byte 0: the file is not UTF-8 text")
    A_LIST = (lambda f: _file(f).write_text("[]"), "not a JSON object with traceEvents")
    NO_EVENTS = (lambda f: _edit(f, lambda made: made.pop("traceEvents")), "no list traceEvents")
    CUT_GZIP = (
        lambda f: _zip(f, 0.5),
        "worker1.json.gz: byte .*, its end: the gzip file is truncated or damaged",
    )
    NOT_GZIPPED = (
        lambda f: _file(f).rename(f / "worker1.json.gz"),
        "the file's name ends in .gz, but it is not gzipped",
    )
    GZIPPED = (
        lambda f: _file(f).write_bytes(gzip.compress(b"{}")),
        "the file is gzipped, but its name does not end in .gz",
    )
    TEXT_FOR_TIME = (_event(5, "ts", "12"), "event 5, ts: '12' is not a number of microseconds")
    NO_TIME = (
        lambda f: _edit(f, lambda made: made["traceEvents"][5].pop("ts")),
        "event 5, ts: is missing",
    )
    NO_STEP = (
        lambda f: _edit(f, lambda made: made.update(traceEvents=made["traceEvents"][1:5])),
        r"worker1.json: it has no ProfilerStep#N annotation.*prof.step\(\)",
    )
    TOO_DEEP = (lambda f: _file(f).write_text("[" * 100_000), "nested too deeply")
    MANY_RANKS = (
        lambda f: _edit(f, lambda made: made["distributedInfo"].update(rank=2_000_000_000)),
        "worker1.json: distributedInfo.rank: rank 2000000000 is not below the number of ranks, 2",
    )
    STEP_TWICE = (
        lambda f: _edit(f, lambda made: made["traceEvents"].extend(made["traceEvents"][:1])),
        "ProfilerStep#1: occurs twice",
    )
    SAME_RANK_TWICE = (
        lambda f: _edit(f, lambda made: made["distributedInfo"].update(rank=0)),
        "worker1.json: rank 0 is also in worker0.json",
    )
    RANK_UNKNOWN = (
        lambda f: _edit(f, lambda made: made.pop("distributedInfo")),
        "neither the file nor its name contains its rank",
    )
    NO_COMMON_STEP = (
        lambda f: _file(f).write_text(
            _file(f).read_text().replace("ProfilerStep#", "ProfilerStep#9")
        ),
        "no step occurs in the traces of all ranks: rank 0 has 1, 2, 3, 4; rank 1 has 91",
    )
    OTHER_COLLECTIVES = (
        lambda f: _edit(f, _without_gloo),
        "ProfilerStep#1: rank 0 took part in 1 collectives and rank 1 in 0",
    )
    EMPTY_FOLDER = (
        lambda f: [_file(f, rank).unlink() for rank in range(2)],
        "the folder contains no trace",
    )
    NO_FOLDER = (lambda f: f.rename(f.parent / "elsewhere"), "no such file or folder")


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name)
def test_bad_traces_are_refused_with_their_place(tmp_path: Path, fault: Fault) -> None:
    spoil, says = fault.value
    folder = write(tmp_path / "traces", [host_document(0), host_document(1)])
    spoil(folder)
    with pytest.raises(TraceFormatError, match=says) as refused:
        open_run(folder)
    assert refused.value.fix


@pytest.mark.parametrize("name", ["notes.txt", "trace"])
def test_an_unknown_ending_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("x")
    with pytest.raises(TraceFormatError, match="is not the suffix of a trace"):
        detect_format(tmp_path / name)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**31, 2**62, 2**80])
    | st.floats(allow_nan=False)
    | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["rank", "world_size", "name"]), inner, max_size=2)
    ),
    max_leaves=4,
)
TOP = ("distributedInfo", "host_name", "baseTimeNanoseconds", "deviceProperties", "traceEvents")
OF_AN_EVENT = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args")


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_whatever_is_in_a_file_it_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Never another exception: that would be a traceback."""
    made = host_document(1, steps=2)
    for _ in range(data.draw(st.integers(1, 3))):
        if data.draw(st.booleans()):
            made[data.draw(st.sampled_from(TOP))] = data.draw(values)
        elif isinstance(made["traceEvents"], list) and made["traceEvents"]:
            place = data.draw(st.integers(0, len(made["traceEvents"]) - 1))
            if isinstance(made["traceEvents"][place], dict):
                made["traceEvents"][place][data.draw(st.sampled_from(OF_AN_EVENT))] = data.draw(
                    values
                )
    folder = write(tmp_path_factory.mktemp("any") / "traces", [host_document(0, steps=2), made])
    try:
        run = open_run(folder)
    except TraceFormatError:
        return
    main = run.spans.where((run.spans.lane == Lane.MAIN) & (run.spans.rank == 1))
    assert (main.start_ns[1:] >= main.end_ns[:-1]).all()
    assert (run.spans.dur_ns >= 0).all()
