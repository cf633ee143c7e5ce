"""Files to a machine: what is left to send, and what the program on the node makes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from laggard.core.errors import DeploymentError
from laggard.layers_services.machine import Access
from laggard.layers_services.ssh.node_files import COUNT, DONE, count_held_bytes
from laggard.layers_services.ssh.send_files import send_files
from laggard.layers_services.ssh.transfer_session import pack_program

PROGRAM = Path(__file__).parents[2] / "layers_services" / "ssh" / "node_files.py"
WHOLE = b"0123456789"


def run_on_node(home: Path, request: dict[str, object], sent: bytes = b"") -> bytes:
    """What the transfer program writes, as a node's Python runs it."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", pack_program(PROGRAM)],
        input=json.dumps(request).encode() + b"\n" + sent,
        capture_output=True,
        check=True,
        env={**os.environ, "HOME": str(home)},
    )
    return done.stdout


@pytest.mark.parametrize(
    ("there", "corrupt", "held"),
    [
        ({}, False, 0),
        ({"w": WHOLE}, False, 10),
        ({"w.part": WHOLE[:4]}, False, 4),
        ({"w.part": b""}, False, 0),
        ({"w.part": WHOLE}, False, 10),
        ({"w.part": b"x" * 11}, False, 0),
        ({"w": b"x" * 9}, False, 0),
        ({"w": b"x" * 10}, True, 0),
        ({"w": b"x" * 10, "w.part": b"x" * 4}, True, 0),
    ],
)
def test_sends_what_is_not_there(
    there: dict[str, bytes], corrupt: bool, held: int, tmp_path: Path
) -> None:
    (tmp_path / "d" / "e").mkdir(parents=True)
    for name, content in there.items():
        (tmp_path / "d" / "e" / name).write_bytes(content)
    file = {"name": "w", "offset": 0, "size": 10, "corrupt": corrupt}
    answer = run_on_node(
        tmp_path, {"operation": "write", "folder": "d/e", "files": [file]}, WHOLE[held:]
    )
    assert answer == COUNT.pack(held) + DONE
    assert (tmp_path / "d" / "e" / "w").read_bytes() == WHOLE
    assert (tmp_path / "d" / "e" / "w").stat().st_mode & 0o777 == 0o644
    assert [each.name for each in (tmp_path / "d" / "e").iterdir()] == ["w"]


@pytest.mark.parametrize(
    ("there", "corrupt", "held"), [(4, False, 4), (11, False, 0), (4, True, 0)]
)
def test_counts_held_bytes(there: int, corrupt: bool, held: int) -> None:
    assert count_held_bytes(10, there, corrupt=corrupt) == held


def test_names_are_no_commands_on_the_node(tmp_path: Path) -> None:
    name = 'a b"; touch owned\n!touch owned'
    (tmp_path / name).write_bytes(WHOLE)
    files = [
        {"name": name, "offset": 3, "size": 10, "corrupt": False},
        {"name": "gone", "offset": 0, "size": 10, "corrupt": False},
    ]
    answer = run_on_node(tmp_path, {"operation": "read", "folder": str(tmp_path), "files": files})
    assert answer == COUNT.pack(7) + WHOLE[3:] + COUNT.pack(0)
    assert [each.name for each in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["../w", "a b", "-w", "", 'w"', "w\n", ".w", "a/b"])
def test_a_name_is_plain(name: str) -> None:
    with pytest.raises(DeploymentError, match="the name of a sent file"):
        send_files("far", Access("127.0.0.1", port=1), "python3", "d", {name: Path("/c/w")})


def test_a_machine_that_does_not_answer(tmp_path: Path) -> None:
    (tmp_path / "w").write_text("x")
    with pytest.raises(
        DeploymentError, match=r"far: 1 files could not be sent to ~/d on the machine: .*refused"
    ):
        send_files("far", Access("127.0.0.1", port=1), "python3", "d", {"w": tmp_path / "w"})
