"""Files to a machine: what is left to send."""

from __future__ import annotations

from pathlib import Path

import pytest

from laggard.core.errors import DeploymentError
from laggard.layers_services.machine import Access
from laggard.layers_services.ssh.send_files import (
    parse_listing,
    plan_sending,
    quote_path,
    send_files,
)

LISTED = """\
sftp> -mkdir ".laggard"
sftp> ls -lan ".laggard/wheels"
drwxr-xr-x    2 11000    11000        4096 Nov 21 12:54 .laggard/wheels/.
drwxr-xr-x    3 11000    11000        4096 Nov 21 12:54 .laggard/wheels/..
-rw-r--r--    1 11000    11000      155560 Nov 21 12:54 .laggard/wheels/ab-psutil-7.2.2-cp36-abi3-linux_x86_64.whl
-rw-r--r--    ? 0        0              12 Nov 21  2025 .laggard/wheels/cd-torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl.part
lrwxrwxrwx    1 0        0              12 Nov 21  2025 .laggard/wheels/link
"""


def test_reads_a_listing() -> None:
    assert parse_listing(LISTED) == {
        "ab-psutil-7.2.2-cp36-abi3-linux_x86_64.whl": 155560,
        "cd-torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl.part": 12,
    }


MOVED = ('-chmod 644 "d/w.part"', '-rename "d/w.part" "d/w"')


@pytest.mark.parametrize(
    ("there", "corrupt", "lines", "sent"),
    [
        ({}, False, ('put "/c/w" "d/w.part"', *MOVED), 10),
        ({"w": 10}, False, (), 0),
        ({"w.part": 4}, False, ('reput "/c/w" "d/w.part"', *MOVED), 6),
        ({"w.part": 0}, False, ('reput "/c/w" "d/w.part"', *MOVED), 10),
        ({"w.part": 10}, False, MOVED, 0),
        ({"w.part": 11}, False, ('put "/c/w" "d/w.part"', *MOVED), 10),
        ({"w": 9}, False, ('rm "d/w"', 'put "/c/w" "d/w.part"', *MOVED), 10),
        ({"w": 10}, True, ('rm "d/w"', 'put "/c/w" "d/w.part"', *MOVED), 10),
        ({"w": 10, "w.part": 4}, True, ('rm "d/w"', 'put "/c/w" "d/w.part"', *MOVED), 10),
    ],
)
def test_sends_what_is_not_there(
    there: dict[str, int], corrupt: bool, lines: tuple[str, ...], sent: int
) -> None:
    plan = plan_sending(
        "d", {"w": Path("/c/w")}, {"w": 10}, there, frozenset({"w"} if corrupt else ())
    )
    assert (plan.lines, plan.sent_bytes) == (lines, sent)


@pytest.mark.parametrize("name", ["../w", "a b", "-w", "", 'w"', "w\n", ".w"])
def test_a_name_is_plain(name: str) -> None:
    with pytest.raises(DeploymentError, match="the name of a sent file"):
        plan_sending("d", {name: Path("/c/w")}, {name: 10}, {})


def test_quotes_a_path() -> None:
    assert quote_path('a b"\\*') == '"a b\\"\\\\*"'
    with pytest.raises(DeploymentError, match="unprintable"):
        quote_path("a\nrm b")


def test_a_machine_that_does_not_answer(tmp_path: Path) -> None:
    (tmp_path / "w").write_text("x")
    with pytest.raises(
        DeploymentError, match=r"far: 1 files could not be sent to ~/d on the machine: .*refused"
    ):
        send_files("far", Access("127.0.0.1", port=1), "d", {"w": tmp_path / "w"})
