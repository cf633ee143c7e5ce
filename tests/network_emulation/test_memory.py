"""Memory of hosts: planned, refused where nothing fits, and watched on real processes."""

from __future__ import annotations

import itertools
import mmap
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from laggard.core.corrections.model_problems import validate_model
from laggard.core.hosts import Host
from laggard.core.yaml_source import parse_yaml
from laggard.network_emulation.forked import end_companion, fork_companion
from laggard.network_emulation.memory.plan import memory_problems, memory_warnings, plan_memory
from laggard.network_emulation.memory.watch import (
    LOOK_S,
    MemoryWatch,
    Overrun,
    held_bytes,
    short_overruns,
)
from laggard.network_emulation.model import Heterogeneity

HOSTS = (
    *(Host(f"edge.w.1.{i}", "edge", "w", 1, i) for i in (1, 2)),
    Host("cloud.w.1.1", "cloud", "w", 1, 1),
)
TEXT = """\
deterministic:
  - {hosts: "edge.*", memory: 400MiB}
  - {hosts: "edge.w.1.2", memory: 100MiB, cpu: 20%}
  - {hosts: "*", cpu: 20%}
"""
SOURCE = parse_yaml(TEXT, "heterogeneity.yaml")
LIMITED = validate_model(SOURCE, Heterogeneity)
MIB = 1 << 20


def test_later_entries_win() -> None:
    assert plan_memory(LIMITED, HOSTS) == {"edge.w.1.1": 400 * MIB, "edge.w.1.2": 100 * MIB}


@pytest.mark.parametrize(
    ("workers", "lines"),
    [
        (("edge.w.1.1", "cloud.w.1.1"), []),
        (("edge.w.1.2",), [3]),
        (("edge.w.1.1", "edge.w.1.1"), [2]),
        (("edge.w.1.1", "edge.w.1.1", "edge.w.1.2"), [2, 3]),
        ((), []),
    ],
)
def test_a_host_too_small_for_its_workers_to_start_is_refused(
    workers: tuple[str, ...], lines: list[int]
) -> None:
    problems = list(memory_problems(LIMITED, workers, HOSTS, SOURCE))
    assert [problem.line for problem in problems] == lines
    assert all(
        "240 MiB" in problem.rule and "raise the limit to at least" in problem.fix
        for problem in problems
    )


def test_a_limit_that_nobody_is_held_to_is_warned_of_or_refused() -> None:
    def lines(*workers: str) -> list[int]:
        return [problem.line for problem in memory_warnings(LIMITED, workers, HOSTS, SOURCE)]

    assert (lines("edge.w.1.2"), lines("edge.w.1.1"), lines()) == ([], [3], [2, 3])


_HELD_BEFORE: dict[int, int] = {}
"""Bytes that a holder held when it was forked: it begins with this process's memory, which may
shrink between two forks."""


def added_bytes(pid: int) -> int:
    """What a holder has taken since its fork."""
    return held_bytes(pid) - _HELD_BEFORE[pid]


@contextmanager
def holding(mib: int, path: Path | None = None) -> Iterator[int]:
    """A process that holds so much of its own, or of a file, in memory."""
    reading, writing = os.pipe()

    def hold() -> int:
        before = held_bytes(os.getpid())
        if path is None:
            held: bytes | bytearray = os.urandom(4096) * (mib << 8)
        else:
            with path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            held = bytearray(mapped[i] for i in range(0, len(mapped), 4096))
        os.write(writing, f"{before}".encode() if held is not None else b"")
        signal.pause()
        return 0

    pid = fork_companion("holder", hold)
    os.close(writing)
    _HELD_BEFORE[pid] = int(os.read(reading, 20))
    yield pid
    end_companion(pid)
    os.close(reading)


@contextmanager
def breathing(file: Path) -> Iterator[tuple[int, Callable[[bytes], None]]]:
    """A process that on order allocates 80 MiB and frees them, or maps a file and touches all of
    it, or lets that go."""
    ours, theirs = socket.socketpair()

    def breathe() -> int:
        mapped: mmap.mmap | None = None
        while order := theirs.recv(1):
            if order == b"a":
                held = os.urandom(4096) * (80 << 8)
                del held
            elif order == b"m":
                with file.open("rb") as opened:
                    mapped = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
                sum(mapped[i] for i in range(0, len(mapped), 4096))
            elif mapped is not None:
                mapped.close()
            theirs.send(b".")
        return 0

    def breathe_once(order: bytes) -> None:
        ours.send(order)
        assert ours.recv(1) == b"."

    pid = fork_companion("breather", breathe)
    theirs.close()
    try:
        yield pid, breathe_once
    finally:
        end_companion(pid)
        ours.close()


def test_what_a_process_holds_counts_and_what_it_maps_does_not(tmp_path: Path) -> None:
    file = tmp_path / "samples"
    file.write_bytes(os.urandom(1 << 16) * (80 << 4))
    with holding(80) as much, holding(0, file) as mapped:
        assert added_bytes(much) == pytest.approx(80 * MIB, abs=4 * MIB)
        assert added_bytes(mapped) == pytest.approx(0, abs=4 * MIB)
    assert held_bytes(much) == 0


def test_a_host_whose_workers_hold_too_much_together_is_told_of() -> None:
    with holding(30) as one, holding(200) as two:
        total = held_bytes(one) + held_bytes(two)
        processes = [("a", one), ("a", two), ("b", two), ("unlimited", two)]
        enough = MemoryWatch({"a": total + 20 * MIB, "b": total})
        assert enough.look(processes) is None
        assert enough.peaks["a"] == pytest.approx(total, abs=4 * MIB)
        short = MemoryWatch({"a": total - 20 * MIB, "b": total})
        overrun = short.look(processes)
        assert overrun is not None
        assert (overrun.host, overrun.pid, overrun.processes) == ("a", two, 2)
        assert (
            f"2 workers hold {overrun.held_bytes / MIB:.0f} MiB, but a has only"
            f" {short.limits['a'] / MIB:.0f} MiB" in str(overrun)
        )
        assert "placement.per_host" in str(overrun)


def look_again(watch: MemoryWatch, pid: int) -> Overrun | None:
    """What the next look that is due finds."""
    return watch.look([("a", pid)])


def test_what_is_held_between_two_looks_is_told_afterwards(tmp_path: Path) -> None:
    """Memory of its own that came and went is seen, a file that was mapped and let go is not, and
    each is seen once."""
    file = tmp_path / "samples"
    file.write_bytes(os.urandom(1 << 16) * (80 << 4))
    with breathing(file) as (pid, breathe):
        base = held_bytes(pid)
        watch = MemoryWatch({"a": base + 40 * MIB}, clock=itertools.count().__next__)
        watch.look([("a", pid)])
        breathe(b"m")
        assert look_again(watch, pid) is None
        assert watch.peaks["a"] == pytest.approx(base, abs=8 * MIB), (
            "what is mapped at a look is known"
        )
        breathe(b"u")
        assert look_again(watch, pid) is None
        assert watch.peaks["a"] == pytest.approx(base, abs=8 * MIB)
        breathe(b"a")
        assert held_bytes(pid) - base < 8 * MIB, "it is gone"
        assert look_again(watch, pid) is None
        assert watch.peaks["a"] == pytest.approx(base + 80 * MIB, abs=8 * MIB)
        (told,) = short_overruns(watch.limits, watch.peaks)
        assert told.startswith(
            f"a: its workers held up to {watch.peaks['a'] / MIB:.0f} MiB for less than 0.5 s"
        )
        watch.peaks.clear()
        assert look_again(watch, pid) is None
        assert short_overruns(watch.limits, watch.peaks) == (), "a peak is of its own time"


def test_looks_are_not_taken_all_the_time() -> None:
    now_s = [100.0]
    watch = MemoryWatch({"a": 1}, clock=lambda: now_s[0])
    found = []
    for _ in range(4):
        found.append(watch.look([("a", os.getpid())]) is not None)
        now_s[0] += 0.6 * LOOK_S
    assert found == [True, False, True, False]
