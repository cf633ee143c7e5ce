"""Lines from and to machines, with a stand-in for ssh that runs the command here: whatever one of
them does, the others' lines come and go."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from laggard.core.hosts import Host
from laggard.layers_services.machine import Access, Machine
from laggard.layers_services.ssh import remote_processes
from laggard.layers_services.ssh.remote_processes import (
    _CHUNK_BYTES,
    _LINE_COST_BYTES,
    _MOST_WAITING_BYTES,
    MOST_LINE_BYTES,
    OutputLine,
    RemoteProcesses,
)

HONEST, OTHER = "edge.trainer.1.1", "edge.trainer.1.2"
ECHO = "cat"
PATIENCE_S = 60.0


def _machine(name: str, number: int) -> Machine:
    return Machine(Host(name, "edge", "trainer", 1, number), Access("127.0.0.1"))


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nfor command; do :; done\nexec /bin/sh -c "$command"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "config"


def _start(config: Path, command: str) -> RemoteProcesses:
    machines = [_machine(name, number) for number, name in enumerate((HONEST, OTHER), 1)]
    processes = RemoteProcesses(machines, config, {HONEST: ECHO, OTHER: command})
    processes.start()
    return processes


def _await(processes: RemoteProcesses, machine: str) -> OutputLine:
    """The next event of a machine; those of the other are passed over."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        event = processes.poll_events(0.1)
        if event is not None and event.machine == machine:
            return event
    raise AssertionError(f"nothing came from {machine}")


def test_lines_come_and_go(config: Path) -> None:
    long_line = "x" * (MOST_LINE_BYTES - 10)
    with _start(config, "echo two; printf 'last words' >&2; exit 3") as processes:
        assert _await(processes, OTHER) == OutputLine(OTHER, b"two")
        assert _await(processes, OTHER) == OutputLine(OTHER, None, "last words")
        for line in ("one", long_line, ""):
            processes.write(HONEST, line)
            assert _await(processes, HONEST) == OutputLine(HONEST, line.encode())
        processes.write(OTHER, "to nobody")


@pytest.mark.parametrize(
    ("command", "lines", "fault"),
    [
        ("cat /dev/zero", 0, "it wrote a line of more than 4 MiB"),
        ("sleep 1000", 20, "it does not read what it is sent"),
    ],
)
def test_a_machine_that_breaks_the_rules_is_ended(
    command: str, lines: int, fault: str, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_processes, "_MOST_UNSENT_BYTES", 1 << 20)
    with _start(config, f"exec {command}") as processes:
        for _ in range(lines):
            processes.write(OTHER, "x" * 100_000)
        event = _await(processes, OTHER)
        assert (event.line, event.fault) == (None, fault)
        processes.write(HONEST, "hello")
        assert _await(processes, HONEST).line == b"hello"


def test_a_flood_waits_where_it_comes_from(config: Path) -> None:
    # A chunk of `yes` has a line in two bytes, each of which counts 256 bytes more.
    most = _MOST_WAITING_BYTES + _CHUNK_BYTES // 2 * (_LINE_COST_BYTES + 1)
    with _start(config, "exec yes") as processes:
        flood = processes._processes[OTHER]
        until_s = time.monotonic() + PATIENCE_S
        while flood.waiting < _MOST_WAITING_BYTES:
            assert time.monotonic() < until_s
        processes.write(HONEST, "hello")
        assert flood.waiting <= most
        assert _await(processes, HONEST).line == b"hello"
        assert flood.waiting <= most


def test_a_flood_of_errors_is_not_kept(config: Path) -> None:
    with _start(config, "exec yes >&2") as processes:
        for line in (b"hello", b"again"):
            processes.write(HONEST, line.decode())
            assert _await(processes, HONEST).line == line
        processes.end(OTHER, "enough")
        event = _await(processes, OTHER)
        assert event.fault == "enough"
        assert len(event.last_words.splitlines()) <= 25


def test_the_last_words_are_short_and_harmless(config: Path) -> None:
    script = r"for n in $(seq 100); do printf '\033[2J%02000d\n' $n >&2; done"
    with _start(config, script) as processes:
        event = _await(processes, OTHER)
        assert event.line is None
        assert len(event.last_words.splitlines()) <= 25
        assert len(event.last_words) < 25 * 600
        assert "\x1b" not in event.last_words
