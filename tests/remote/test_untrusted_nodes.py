"""Nothing that a node says is believed: lines, replies and names that no agent writes."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from laggard.core.errors import DeploymentError
from laggard.layers_services.ssh.contained_files import open_contained, require_contained_name
from laggard.layers_services.ssh.fetch_files import MANIFEST
from laggard.remote.agent import operations
from laggard.remote.agent.messages import LOG_CHUNK_BYTES, parse_agent_message
from laggard.remote.agent.operations import LEAVE, Operation
from laggard.workloads.coordination.progress_relay import PIECE_BYTES
from tests.faults import Fault, holds
from tests.remote.agent_sessions import HOSTS, Sessions, make_pool

HEAD, LIAR, HONEST = HOSTS
"""`LIAR` has rank 1 of 3."""

DIGEST = "0" * 64


def _say(kind: str, **fields: object) -> bytes:
    return json.dumps({"kind": kind, **fields}).encode()


def _beat(**changes: object) -> bytes:
    beat = {"rank": 1, "step": 0, "phase": 0, "age_s": 0.1, "cpu_s": 0.0, "stopped": False}
    return _say("node_heartbeats", heartbeats=[{**beat, **changes}])


def _sample(**changes: object) -> bytes:
    times = {"reference_ns": 1, "at_ns": 1, "wall_ns": 1, "awake_ns": 1, "stolen_ns": {}}
    limits = {"use": None, "share": None, "mechanism": None}
    return _say("node_sample", **{**times, **limits, **changes})


def _done(**changes: object) -> bytes:
    counts = {"steps": 1, "samples": 1, "evaluations": 1, "zero_ns": 0, "end_ns": 1, "paused_ns": 0}
    document = {"stopped_by": "steps", "accuracy": 0.5, "makespan_s": 1.0, **counts, **changes}
    return _say("training_done", document=document)


LINES: dict[str, tuple[str, bytes]] = {
    "an empty line": (LIAR, b""),
    "no JSON": (LIAR, b"Last login: Thu Nov 26"),
    "half a message": (LIAR, b'{"kind": "rank_ready", "ra'),
    "no UTF-8": (LIAR, b'{"kind": "agent_failed", "error": "\xff\xfe"}'),
    "half a surrogate": (LIAR, b'{"kind": "agent_failed", "error": "\\ud800"}'),
    "a list": (LIAR, b"[]"),
    "brackets without end": (LIAR, b"[" * 100_000),
    "an object in objects": (LIAR, b'{"kind":' * 100_000),
    "no kind": (LIAR, b"{}"),
    "an unknown kind": (LIAR, _say("run_this", command="id")),
    "a kind of the controller": (LIAR, _say("request", number=0, operation="leave")),
    "a plan": (LIAR, _say("plan")),
    "a field too many": (LIAR, _say("rank_ready", rank=1, more=1)),
    "a field too few": (LIAR, _say("rank_ready")),
    "a rank as text": (LIAR, _say("rank_ready", rank="1")),
    "a rank that is true": (LIAR, _say("rank_ready", rank=True)),
    "a huge rank": (LIAR, _say("rank_ready", rank=10**30)),
    "a rank of thousands of digits": (LIAR, b'{"kind":"rank_ready","rank":' + b"9" * 5000 + b"}"),
    "an infinite time": (LIAR, _beat(age_s=float("inf"))),
    "no number": (LIAR, _beat(cpu_s=float("nan"))),
    "a time beyond floating point": (LIAR, _beat().replace(b"0.1", b"1e999")),
    "a phase that is not there": (LIAR, _beat(phase=99)),
    "a negative phase": (LIAR, _beat(phase=-1)),
    "a step beyond 64 bits": (LIAR, _beat(step=2**63)),
    "too many heartbeats": (
        LIAR,
        _say("node_heartbeats", heartbeats=[json.loads(_beat())["heartbeats"][0]] * 5000),
    ),
    "a sample beyond 64 bits": (LIAR, _sample(at_ns=2**64)),
    "computing time beyond 64 bits": (
        LIAR,
        _sample(use={"due_ns": 2**70, "lost_ns": 0, "owed_ns": 0}),
    ),
    "a share of nothing": (LIAR, _sample(share=0.0)),
    "too many cores": (LIAR, _sample(stolen_ns={str(n): 0 for n in range(9000)})),
    "an exit status that is none": (
        LIAR,
        _say("process_ended", name="rank-1", rank=1, status=10**6, log_tail=""),
    ),
    "a log at an absolute path": (LIAR, _say("log_chunk", name="/OUTSIDE/x.log", text="owned")),
    "a log above the folder": (LIAR, _say("log_chunk", name="../x.log", text="owned")),
    "a log with a line break": (LIAR, _say("log_chunk", name="x\n.log", text="owned")),
    "the controller's log": (LIAR, _say("log_chunk", name="controller.log", text="owned")),
    "another node's log": (LIAR, _say("log_chunk", name="rank-2.log", text="owned")),
    "a log that is too long": (
        LIAR,
        _say("log_chunk", name="rank-1.log", text="x" * (LOG_CHUNK_BYTES + 1)),
    ),
    "another node's rank is ready": (LIAR, _say("rank_ready", rank=2)),
    "another node's rank died": (
        LIAR,
        _say("process_ended", name="rank-2", rank=2, status=-9, log_tail=""),
    ),
    "another node's heartbeat": (LIAR, _beat(rank=2)),
    "another node's memory": (LIAR, _say("memory_exceeded", rank=0, text="x")),
    "another node's arrival": (LIAR, _say("arrived", rank=0, barrier=1, time_ns=1)),
    "another node's progress": (LIAR, _say("counted", rank=0, samples=1, steps=1)),
    "a rank that does not exist": (LIAR, _say("session_ended", rank=3, session=0)),
    "another node's name": (LIAR, _say("agent_started", host=HONEST, pid=1)),
    "a first step that is not its own": (LIAR, _say("first_step_began", time_ns=1)),
    "an opening that is not its own": (LIAR, _say("opened", barrier=1, time_ns=1, verdict=0)),
    "a last step that is not its own": (LIAR, _say("last_step", step=1, reason=1)),
    "an end that is not its own": (LIAR, _done()),
    "progress that is not its own": (LIAR, _say("training_progress", lines=[])),
    "a snapshot that is not its own": (LIAR, _say("snapshot_requested", number=1)),
    "an end of training that is not its own": (LIAR, _say("training_over", reason=1)),
    "a stop of the controller": (HEAD, _say("stop_requested")),
    "a piece that is not base64": (
        LIAR,
        _say("part_piece", rank=1, number=1, content="%%%", last=True),
    ),
    "a piece that is too long": (
        LIAR,
        _say("part_piece", rank=1, number=1, content="A" * (2 * PIECE_BYTES), last=True),
    ),
    "an end for a reason that is none": (HEAD, _done(stopped_by="boredom")),
    "an end with an infinite makespan": (HEAD, _done(makespan_s=float("inf"))),
    "an end without an end": (HEAD, _done(end_ns=None)),
    "progress that is a tree": (HEAD, _say("training_progress", lines=[{"step": {"a": 1}}])),
    "progress without end": (HEAD, _say("training_progress", lines=[{}] * 20_000)),
    "a reply to nothing": (LIAR, _say("reply", number=77)),
    "a reply to a negative number": (LIAR, _say("reply", number=-1)),
}
"""Who writes it, and the line."""


@holds(Fault.NODE_GARBLED)
@pytest.mark.parametrize("attack", LINES)
def test_a_garbled_line_costs_its_node_alone(attack: str, tmp_path: Path) -> None:
    logs, outside = tmp_path / "run" / "logs", tmp_path / "outside"
    for folder in (logs, outside):
        folder.mkdir(parents=True)
    liar, line = LINES[attack]
    sessions = Sessions()
    pool = make_pool(sessions, logs)
    sessions.say(liar, line.replace(b"/OUTSIDE", str(outside).encode()))
    with pytest.raises(DeploymentError, match=f"^{liar}: the node sends garbled messages") as error:
        pool.poll_events(0.0)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 1000
    assert set(sessions.ended) == set(pool.garbled) == {liar}
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    pool.tolerate_losses()
    sessions.say(liar, _beat())
    assert pool.poll_events(0.0) == ()
    others = [host for host in HOSTS if host != liar]
    assert pool.call_all(LEAVE, {host: {} for host in others}) == dict.fromkeys(others)
    with pytest.raises(DeploymentError, match=f"^{liar}: the node sends garbled messages"):
        pool.call(liar, LEAVE)


def test_a_reply_to_another_nodes_request_is_garbled(tmp_path: Path) -> None:
    sessions = Sessions()
    pool = make_pool(sessions, tmp_path)
    sessions.say(LIAR, _say("reply", number=0))
    pending = pool.send_request(HONEST, LEAVE)
    with pytest.raises(DeploymentError, match=f"^{LIAR}.*replies to request 0"):
        pool.wait_for_reply(pending, 1.0)


def test_a_flood_of_good_messages_is_garbled(tmp_path: Path) -> None:
    sessions = Sessions()
    pool = make_pool(sessions, tmp_path)
    for _ in range(10_001):
        sessions.say(LIAR, _say("rank_ready", rank=1))
    with pytest.raises(DeploymentError, match=f"^{LIAR}.*more than 10000 of its messages wait"):
        pool.call(HONEST, LEAVE)


def test_a_log_through_a_link_is_not_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logs, outside = tmp_path / "logs", tmp_path / "outside"
    logs.mkdir()
    (logs / "rank-1.log").symlink_to(outside)
    sessions = Sessions()
    pool = make_pool(sessions, logs)
    for rank, host in ((1, LIAR), (2, HONEST)):
        sessions.say(host, _say("log_chunk", name=f"rank-{rank}.log", text="hello\n"))
    pool.poll_events(0.0)
    assert not outside.exists()
    assert (logs / "rank-2.log").read_text() == "hello\n"
    assert "rank-1.log cannot be written" in caplog.text


CHECK = {
    "kind": "cpu",
    "src": LIAR,
    "dst": None,
    "requested": 1.0,
    "measured": 1.0,
    "unit": "x",
    "tolerance": 0.1,
    "ok": True,
}
REPLIES: dict[str, tuple[Operation[object], object]] = {
    name: (operation, result)  # type: ignore[misc]
    for name, operation, result in (
        ("a clock that is text", operations.READ_CLOCK, "now"),
        ("a clock beyond 64 bits", operations.READ_CLOCK, 2**63),
        ("a clock that is a fraction", operations.READ_CLOCK, 1.5),
        ("a port that is none", operations.OPEN_SINK, 70_000),
        ("an infinite rate", operations.RECEIVE, float("inf")),
        ("no rate", operations.RECEIVE, float("nan")),
        ("a negative rate", operations.RECEIVE, -1.0),
        ("a negative round trip", operations.MEASURE_ROUND_TRIPS, {HONEST: -1.0}),
        ("an infinite round trip", operations.MEASURE_ROUND_TRIPS, {HONEST: float("inf")}),
        ("round trips that are a list", operations.MEASURE_ROUND_TRIPS, [1.0]),
        ("an output that is no text", operations.RUN_COMMAND, {"a": 1}),
        ("a fingerprint that is a tree", operations.FINGERPRINT, {"cpu": {"a": 1}}),
        ("a fingerprint without end", operations.FINGERPRINT, {str(n): n for n in range(100)}),
        ("a check of infinity", operations.APPLY_SHARES, [{**CHECK, "measured": float("inf")}]),
        ("a check without a kind", operations.VERIFY_DRIVE, [{}]),
        ("checks without end", operations.VERIFY_DRIVE, [CHECK] * 2000),
        ("something for nothing", operations.LEAVE, {}),
        ("an end that is a list", operations.END_TRAINING, []),
        ("usage beyond 64 bits", operations.REPORT_USAGE, {"drive": None, "peak_bytes": 2**70}),
    )
}


@pytest.mark.parametrize("attack", REPLIES)
def test_a_garbled_reply_costs_its_node_alone(attack: str, tmp_path: Path) -> None:
    operation, result = REPLIES[attack]
    pool = make_pool(Sessions(result), tmp_path)
    pool.tolerate_losses()
    with pytest.raises(DeploymentError, match=f"^{LIAR}: the node sends garbled messages"):
        pool.call(LIAR, operation)
    assert set(pool.garbled) == {LIAR}


NAMES = [
    "",
    ".",
    "..",
    "../x",
    "../../x",
    "workers/../../x",
    "workers/./x",
    "/etc/passwd",
    "//x",
    "a//b",
    "a/",
    'x"\n!touch owned\n"',
    "x\ry",
    "x\0y",
    "x\x1b[2Jy",
    "x\u202ey",
    "x\ud800y",
    "x" * 256,
    "/".join(["x" * 200] * 6),
]
"""Names of files that no run has."""


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_leaves_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError):
        MANIFEST.validate_python({name: {"size_bytes": 1, "sha256": DIGEST}})
    with pytest.raises(ValueError, match="is no file name"):
        open_contained(tmp_path, name, os.O_WRONLY | os.O_CREAT)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "file",
    [
        {"size_bytes": -1, "sha256": DIGEST},
        {"size_bytes": 2**60, "sha256": DIGEST},
        {"size_bytes": 1.5, "sha256": DIGEST},
        {"size_bytes": 1, "sha256": "00"},
        {"size_bytes": 1, "sha256": DIGEST + "\n"},
        {"size_bytes": 1},
        {"size_bytes": 1, "sha256": DIGEST, "mode": 0o4755},
        None,
    ],
)
def test_a_file_that_cannot_be_is_refused(file: object) -> None:
    with pytest.raises(ValidationError):
        MANIFEST.validate_python({"x": file})


def test_a_manifest_has_a_bounded_number_of_files() -> None:
    files = {f"{n}": {"size_bytes": 1, "sha256": DIGEST} for n in range(10_001)}
    with pytest.raises(ValidationError, match="at most 10000 items"):
        MANIFEST.validate_python(files)


@given(st.text())
def test_every_name_stays_inside_or_is_refused(name: str) -> None:
    root = Path("/runs/small/workers")
    try:
        require_contained_name(name)
    except ValueError:
        return
    target = Path(os.path.normpath(root / name))
    assert target != root
    assert target.is_relative_to(root)
    assert name.isprintable()


GOOD = [
    _beat(),
    _sample(),
    _done(),
    _say("log_chunk", name="rank-1.log", text="x"),
    _say("rank_ready", rank=1),
    _say("arrived", rank=1, barrier=1, time_ns=1),
    _say("part_piece", rank=1, number=1, content="AAAA", last=False),
    _say("process_ended", name="rank-1", rank=1, status=1, log_tail="x"),
]


@st.composite
def _damaged_lines(draw: st.DrawFn) -> bytes:
    """Good messages with one value replaced, or a few bytes."""
    line = draw(st.sampled_from(GOOD))
    if draw(st.booleans()):
        document = json.loads(line)
        key = draw(st.sampled_from(sorted(document)))
        leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
        document[key] = draw(
            st.recursive(leaves, lambda each: st.lists(each) | st.dictionaries(st.text(), each))
        )
        return json.dumps(document).encode()
    at = draw(st.integers(0, len(line)))
    return line[:at] + draw(st.binary(max_size=5)) + line[at + draw(st.integers(0, 5)) :]


@settings(deadline=None)
@given(st.binary() | _damaged_lines())
def test_every_line_is_a_message_or_names_its_node(line: bytes) -> None:
    folder = Path("/nonexistent")
    sessions = Sessions()
    pool = make_pool(sessions, folder)
    sessions.say(LIAR, line)
    try:
        parse_agent_message(line)
    except ValueError:
        with pytest.raises(DeploymentError, match=f"^{LIAR}: the node sends garbled messages"):
            pool.poll_events(0.0)
        return
    with suppress(DeploymentError):
        pool.poll_events(0.0)
    assert set(pool.garbled) <= {LIAR}
