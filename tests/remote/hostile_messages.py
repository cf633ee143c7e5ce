"""What no agent says: lines and replies of a node that lies, and how a controller takes them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from laggard.core.errors import DeploymentError
from laggard.remote.agent import operations
from laggard.remote.agent.messages import LOG_CHUNK_BYTES, parse_agent_message
from laggard.remote.agent.operations import LEAVE, Operation
from laggard.workloads.coordination.progress_relay import PIECE_BYTES
from tests.remote.agent_sessions import HOSTS, Sessions, make_pool
from tests.run_folder.mutations import damage_content

HEAD, LIAR, HONEST = HOSTS
"""`LIAR` has rank 1 of 3."""


def say(kind: str, **fields: object) -> bytes:
    return json.dumps({"kind": kind, **fields}).encode()


def beat(**changes: object) -> bytes:
    beat = {"rank": 1, "step": 0, "phase": 0, "age_s": 0.1, "cpu_s": 0.0, "stopped": False}
    return say("node_heartbeats", heartbeats=[{**beat, **changes}])


def sample(**changes: object) -> bytes:
    times = {"reference_ns": 1, "at_ns": 1, "wall_ns": 1, "awake_ns": 1, "stolen_ns": {}}
    limits = {"use": None, "share": None, "mechanism": None}
    return say("node_sample", **{**times, **limits, **changes})


def done(**changes: object) -> bytes:
    counts = {"steps": 1, "samples": 1, "evaluations": 1, "zero_ns": 0, "end_ns": 1, "paused_ns": 0}
    document = {"stopped_by": "steps", "accuracy": 0.5, "makespan_s": 1.0, **counts, **changes}
    return say("training_done", document=document)


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
    "an unknown kind": (LIAR, say("run_this", command="id")),
    "a kind of the controller": (LIAR, say("request", number=0, operation="leave")),
    "a plan": (LIAR, say("plan")),
    "a field too many": (LIAR, say("rank_ready", rank=1, more=1)),
    "a field too few": (LIAR, say("rank_ready")),
    "a rank as text": (LIAR, say("rank_ready", rank="1")),
    "a rank that is true": (LIAR, say("rank_ready", rank=True)),
    "a huge rank": (LIAR, say("rank_ready", rank=10**30)),
    "a rank of thousands of digits": (LIAR, b'{"kind":"rank_ready","rank":' + b"9" * 5000 + b"}"),
    "an infinite time": (LIAR, beat(age_s=float("inf"))),
    "no number": (LIAR, beat(cpu_s=float("nan"))),
    "a time beyond floating point": (LIAR, beat().replace(b"0.1", b"1e999")),
    "a phase that is not there": (LIAR, beat(phase=99)),
    "a negative phase": (LIAR, beat(phase=-1)),
    "a step beyond 64 bits": (LIAR, beat(step=2**63)),
    "too many heartbeats": (
        LIAR,
        say("node_heartbeats", heartbeats=[json.loads(beat())["heartbeats"][0]] * 5000),
    ),
    "a sample beyond 64 bits": (LIAR, sample(at_ns=2**64)),
    "computing time beyond 64 bits": (
        LIAR,
        sample(use={"due_ns": 2**70, "lost_ns": 0, "owed_ns": 0}),
    ),
    "a share of nothing": (LIAR, sample(share=0.0)),
    "too many cores": (LIAR, sample(stolen_ns={str(n): 0 for n in range(9000)})),
    "an exit status that is none": (
        LIAR,
        say("process_ended", name="rank-1", rank=1, status=10**6, log_tail=""),
    ),
    "a log at an absolute path": (LIAR, say("log_chunk", name="/OUTSIDE/x.log", text="owned")),
    "a log above the folder": (LIAR, say("log_chunk", name="../x.log", text="owned")),
    "a log with a line break": (LIAR, say("log_chunk", name="x\n.log", text="owned")),
    "the controller's log": (LIAR, say("log_chunk", name="controller.log", text="owned")),
    "another node's log": (LIAR, say("log_chunk", name="rank-2.log", text="owned")),
    "a log that is too long": (
        LIAR,
        say("log_chunk", name="rank-1.log", text="x" * (LOG_CHUNK_BYTES + 1)),
    ),
    "another node's rank is ready": (LIAR, say("rank_ready", rank=2)),
    "another node's rank died": (
        LIAR,
        say("process_ended", name="rank-2", rank=2, status=-9, log_tail=""),
    ),
    "another node's heartbeat": (LIAR, beat(rank=2)),
    "another node's memory": (LIAR, say("memory_exceeded", rank=0, text="x")),
    "another node's arrival": (LIAR, say("arrived", rank=0, barrier=1, time_ns=1)),
    "another node's progress": (LIAR, say("counted", rank=0, samples=1, steps=1)),
    "a rank that does not exist": (LIAR, say("session_ended", rank=3, session=0)),
    "another node's name": (LIAR, say("agent_started", host=HONEST, pid=1)),
    "a first step that is not its own": (LIAR, say("first_step_began", time_ns=1)),
    "an opening that is not its own": (LIAR, say("opened", barrier=1, time_ns=1, verdict=0)),
    "a last step that is not its own": (LIAR, say("last_step", step=1, reason=1)),
    "an end that is not its own": (LIAR, done()),
    "progress that is not its own": (LIAR, say("training_progress", lines=[])),
    "a snapshot that is not its own": (LIAR, say("snapshot_requested", number=1)),
    "an end of training that is not its own": (LIAR, say("training_over", reason=1)),
    "a stop of the controller": (HEAD, say("stop_requested")),
    "a piece that is not base64": (
        LIAR,
        say("part_piece", rank=1, number=1, content="%%%", last=True),
    ),
    "a piece that is too long": (
        LIAR,
        say("part_piece", rank=1, number=1, content="A" * (2 * PIECE_BYTES), last=True),
    ),
    "an end for a reason that is none": (HEAD, done(stopped_by="boredom")),
    "an end with an infinite makespan": (HEAD, done(makespan_s=float("inf"))),
    "an end without an end": (HEAD, done(end_ns=None)),
    "progress that is a tree": (HEAD, say("training_progress", lines=[{"step": {"a": 1}}])),
    "progress without end": (HEAD, say("training_progress", lines=[{}] * 20_000)),
    "a reply to nothing": (LIAR, say("reply", number=77)),
    "a reply to a negative number": (LIAR, say("reply", number=-1)),
}
"""Who writes it, and the line."""


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


GOOD = [
    beat(),
    sample(),
    done(),
    say("log_chunk", name="rank-1.log", text="x"),
    say("rank_ready", rank=1),
    say("arrived", rank=1, barrier=1, time_ns=1),
    say("part_piece", rank=1, number=1, content="AAAA", last=False),
    say("process_ended", name="rank-1", rank=1, status=1, log_tail="x"),
]
"""Messages of an honest node."""


def hear_line(liar: str, line: bytes, folder: Path) -> Iterator[str]:
    """Let a controller hear a line that no agent writes; yield the promises that are broken.

    One message names the node, no file is written, and the other nodes are heard and answered.
    """
    logs, outside = folder / "run" / "logs", folder / "outside"
    for each in (logs, outside):
        each.mkdir(parents=True)
    sessions = Sessions()
    pool = make_pool(sessions, logs)
    sessions.say(liar, line.replace(b"/OUTSIDE", str(outside).encode()))
    yield from _describe_end(liar, lambda: pool.poll_events(0.0))
    if set(sessions.ended) != {liar} or set(pool.garbled) != {liar}:
        yield f"ended {sorted(sessions.ended)}, garbled {sorted(pool.garbled)}"
    yield from (f"written: {path}" for path in folder.rglob("*") if path.is_file())
    pool.tolerate_losses()
    sessions.say(liar, beat())
    if pool.poll_events(0.0):
        yield "the node is still heard"
    others = [host for host in HOSTS if host != liar]
    if pool.call_all(LEAVE, {host: {} for host in others}) != dict.fromkeys(others):
        yield "the others do not answer"
    yield from _describe_end(liar, lambda: pool.call(liar, LEAVE))


def hear_reply(operation: Operation[object], result: object, folder: Path) -> Iterator[str]:
    """Let a controller hear a reply that no agent gives; yield the promises that are broken."""
    pool = make_pool(Sessions(result), folder)
    pool.tolerate_losses()
    yield from _describe_end(LIAR, lambda: pool.call(LIAR, operation))
    if set(pool.garbled) != {LIAR}:
        yield f"garbled {sorted(pool.garbled)}"


def hear_damaged(seed: int, folder: Path) -> Iterator[str]:
    """Let a controller hear a good message that was damaged, which may still be one."""
    rng = random.Random(seed)
    file = folder / "message.jsonl"
    file.write_bytes(rng.choice(GOOD) + b"\n")
    damage_content(file, rng)
    line = file.read_bytes().rstrip(b"\n")
    file.unlink()
    try:
        parse_agent_message(line)
    except ValueError:
        yield from hear_line(LIAR, line, folder)
        return
    sessions = Sessions()
    sessions.say(LIAR, line)
    pool = make_pool(sessions, folder)
    try:
        pool.poll_events(0.0)
    except DeploymentError as error:
        yield from _describe_message(LIAR, str(error))


def _describe_end(liar: str, end: Callable[[], object]) -> Iterator[str]:
    try:
        end()
    except DeploymentError as error:
        yield from _describe_message(f"{liar}: the node sends garbled messages", str(error))
    else:
        yield "it is believed"


def _describe_message(beginning: str, message: str) -> Iterator[str]:
    if not message.startswith(beginning) or not message.isprintable() or len(message) >= 1000:
        yield f"no single message about the node: {message!r:.500}"


HOSTILE_MESSAGES: Mapping[str, Callable[[Path], Iterator[str]]] = {
    **{name: partial(hear_line, liar, line) for name, (liar, line) in LINES.items()},
    **{name: partial(hear_reply, *reply) for name, reply in REPLIES.items()},
    **{f"damaged message {seed}": partial(hear_damaged, seed) for seed in range(60)},
}
"""Each lets a controller hear a message, and yields the promises that are broken."""
