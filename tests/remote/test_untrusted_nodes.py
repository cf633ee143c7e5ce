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
from laggard.remote.agent.messages import parse_agent_message
from laggard.remote.agent.operations import LEAVE
from tests.faults import Fault, holds
from tests.remote.agent_sessions import Sessions, make_pool
from tests.remote.hostile_messages import (
    GOOD,
    HONEST,
    LIAR,
    LINES,
    REPLIES,
    hear_line,
    hear_reply,
    say,
)

DIGEST = "0" * 64


@holds(Fault.NODE_GARBLED)
@pytest.mark.parametrize("attack", LINES)
def test_a_garbled_line_costs_its_node_alone(attack: str, tmp_path: Path) -> None:
    assert list(hear_line(*LINES[attack], tmp_path)) == []


def test_a_reply_to_another_nodes_request_is_garbled(tmp_path: Path) -> None:
    sessions = Sessions()
    pool = make_pool(sessions, tmp_path)
    sessions.say(LIAR, say("reply", number=0))
    pending = pool.send_request(HONEST, LEAVE)
    with pytest.raises(DeploymentError, match=f"^{LIAR}.*replies to request 0"):
        pool.wait_for_reply(pending, 1.0)


def test_a_flood_of_good_messages_is_garbled(tmp_path: Path) -> None:
    sessions = Sessions()
    pool = make_pool(sessions, tmp_path)
    for _ in range(10_001):
        sessions.say(LIAR, say("rank_ready", rank=1))
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
        sessions.say(host, say("log_chunk", name=f"rank-{rank}.log", text="hello\n"))
    pool.poll_events(0.0)
    assert not outside.exists()
    assert (logs / "rank-2.log").read_text() == "hello\n"
    assert "rank-1.log cannot be written" in caplog.text


@pytest.mark.parametrize("attack", REPLIES)
def test_a_garbled_reply_costs_its_node_alone(attack: str, tmp_path: Path) -> None:
    assert list(hear_reply(*REPLIES[attack], tmp_path)) == []


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
