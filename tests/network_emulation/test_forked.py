"""Processes beside a run: what they inherit is not theirs to look through."""

from __future__ import annotations

import errno
import gc
import os
import resource
import time
from pathlib import Path

import pytest

from laggard.core.errors import EmulationError, InputError
from laggard.network_emulation.forked import (
    companion_is_alive,
    fork_companion,
    run_forked,
    start_forked,
)

OBJECTS = 200_000
"""Some 5,000 pages of them."""


def _pages_of_a_collection() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    gc.collect()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def _pages_after_a_plain_fork() -> int:
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(writing, str(_pages_of_a_collection()).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        return int(pipe.read())


def test_a_collection_copies_nothing_of_what_was_inherited() -> None:
    """Each page that it touched would be copied, and nothing that such a process times would be
    right meanwhile. A fork reads some hundred pages of libraries anew, in any case."""
    inherited = [[each] for each in range(OBJECTS)]
    copied = _pages_after_a_plain_fork()
    assert copied > 4000
    assert run_forked("laggard-test", _pages_of_a_collection) < copied / 4
    assert len(inherited) == OBJECTS


def test_a_started_call_runs_beside_its_caller_and_ends_with_it(tmp_path: Path) -> None:
    go, begun = tmp_path / "go", tmp_path / "begun"

    def answer() -> int:
        begun.touch()
        while not go.exists():
            time.sleep(0.01)
        return 7

    with start_forked("laggard-test", answer) as call:
        while not begun.exists():
            time.sleep(0.01)
        go.touch()
        assert call.result() == 7
    go.unlink()
    with start_forked("laggard-test", answer) as call:
        pid = call._pid
    assert not companion_is_alive(pid)


def test_a_started_call_raises_what_its_function_raised() -> None:
    def refuse() -> int:
        raise InputError("no")

    with start_forked("laggard-test", refuse) as call, pytest.raises(InputError, match="no"):
        call.result()


def test_a_network_that_is_gone_is_one_message(capfd: pytest.CaptureFixture[str]) -> None:
    def send() -> None:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    with pytest.raises(EmulationError, match="Network is unreachable — one of its processes may"):
        run_forked("laggard-probe", send)
    assert "Traceback" not in capfd.readouterr().err


def test_a_companion_whose_other_end_is_gone_says_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def lose_connection() -> int:
        raise ConnectionResetError("connection reset by peer")

    _, status = os.waitpid(fork_companion("test-lost", lose_connection), 0)
    assert os.waitstatus_to_exitcode(status) == 1
    assert capfd.readouterr().err == ""
