"""Everything that goes wrong on purpose, and what must be true afterwards."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from laggard.workloads.output.worker_output import read_lines

Test = TypeVar("Test", bound=Callable[..., None])


@dataclass(frozen=True)
class Promise:
    """A fault, and what holds afterwards."""

    fault: str
    afterwards: str


class Fault(enum.Enum):
    """All faults; each is inflicted by at least one test, which is marked with `holds`."""

    COMMAND_KILLED = Promise(
        "`kill -9` of `laggard run`",
        "The kernel ends all its processes, links and mounts; the janitor removes its cgroups."
        " `report`, `analyze`, `export` and `compare` find every finished step.",
    )
    SANDBOX_KILLED = Promise(
        "`kill -9` of the sandbox's first process or of the link emulator",
        "The run fails or is interrupted, with its report and every finished step.",
    )
    WORKER_ENDED = Promise(
        "A worker is killed, terminated or has a segmentation fault",
        "The run fails and names the rank, its host and the end of its log. A strategy that"
        " tolerates losses goes on without it.",
    )
    WORKER_STOPPED = Promise(
        "A worker stops without an end (SIGSTOP)",
        "The run fails and names the rank, its host and the phase in which it stopped.",
    )
    WORKER_TOO_BIG = Promise(
        "A worker needs more memory than its host has",
        "The run fails and names the rank, its memory and the limit.",
    )
    HELPER_KILLED = Promise(
        "The straggler watcher or the janitor is killed",
        "Training goes on; the record has a warning. The next run removes the cgroups.",
    )
    SIGNAL = Promise(
        "SIGINT, SIGTERM or SIGHUP at any moment of a run",
        "The run ends in order within seconds, with status `interrupted`, its report and every"
        " finished step. Machines of a testbed are released.",
    )
    SECOND_SIGNAL = Promise(
        "A second signal",
        "The command ends at once and names the machines that it still holds; the data of the run"
        " is kept.",
    )
    DISK_FULL = Promise(
        "The disk is full from some moment on",
        "One message with the reason, status `failed` and exit status 1; the record has space of"
        " its own. Once there is space, `report` finds every finished step.",
    )
    WRITE_FAILS = Promise(
        "A single write, rename or new file fails: no space, no quota, an I/O error, too many"
        " open files",
        "One message with the file and the reason, no traceback, and no run that still says"
        " `running`.",
    )
    OUTPUT_LOST = Promise(
        "Standard output or error is a closed pipe, a full device or a closed descriptor",
        "A run goes on and ends with its own status. A command that only prints says why its"
        " output is lost.",
    )
    NODE_GARBLED = Promise(
        "A machine of a testbed sends garbage, foreign names, or more than it may",
        "Its own data is left out with a warning; nothing is written outside the run folder; the"
        " data of all others is collected.",
    )
    NODE_LOST = Promise(
        "A node of a testbed vanishes in training, or its agent or SSH session ends",
        "The run fails and names the node; the data of all others is collected and reported, and"
        " machines are released. A node that is still up ends its processes and undoes the"
        " changes of the run; its data is collected too.",
    )
    AGENT_STOPPED = Promise(
        "The agent of a node stops without an end (SIGSTOP)",
        "After 15 s, the run fails and names the node; the data of all nodes is collected and"
        " reported. The node ends the agent and undoes the changes of the run.",
    )
    NODE_KEY_CHANGED = Promise(
        "A machine answers with another host key than before in the same reservation",
        "The connection is refused with one message that says how to go on.",
    )
    STRANGER_AT_DOOR = Promise(
        "Another program connects to the workers' sockets",
        "It can neither read nor send a message of the training.",
    )
    STRANGER_AT_SOCKET = Promise(
        "Another user answers on the control socket of an emulation, or connects to it",
        "Both sides refuse a peer of another user; no program is started.",
    )
    STRANGE_FOLDER = Promise(
        "A run folder or a trace from a stranger: links, pipes, huge or damaged values",
        "One message, no traceback; no file outside the folder is read or replaced; memory and"
        " time stay bounded.",
    )
    CLOCK_STEPPED = Promise(
        "The wall clock of a machine is set during a run",
        "Durations and deadlines stay those of the monotonic clock; the run is `unfaithful`, and"
        " its record has the time and the size of the step.",
    )
    DATAGRAM_FORGED = Promise(
        "Datagrams of the clock comparison are lost, late, doubled or forged",
        "The bounds of the clocks' offset stay true.",
    )


def holds(*faults: Fault) -> Callable[[Test], Test]:
    """Mark a test that inflicts faults and checks their promises."""
    assert faults

    def mark(test: Test) -> Test:
        marked: Test = pytest.mark.fault(*faults)(test)
        return marked

    return mark


def count_finished_steps(progress: Path) -> int:
    """Return the steps that the first rank said it had finished.

    The evaluator's lines in the same file have no samples.
    """
    return sum("samples" in line for line in read_lines(progress))
