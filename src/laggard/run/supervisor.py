"""Watches the processes of a training: who died, who hangs, how far it is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from laggard.core.errors import WorkerError
from laggard.layers_services.local.launch import Exit, ForkServer
from laggard.network_emulation.memory.watch import MemoryWatch
from laggard.supervision.hang_detection import HangDetector, format_hang, read_process_state
from laggard.supervision.log_tail import read_log_tail
from laggard.supervision.peer_failure import BLAME_GRACE_S, is_peer_failure
from laggard.workloads.output.worker_output import WorkerOutputDir
from laggard.workloads.tracing.heartbeat import read_heartbeats


@dataclass(frozen=True)
class SupervisedProcess:
    """A process of the training. `rank` is -1 for those that are none; `in_host` are those that
    live in a host of the continuum.

    `joined_file` exists once a worker that was started while others trained is one of them; None of
    those that were there from the start. Training goes on without a `dispensable` process.
    """

    name: str
    rank: int
    host: str
    pid: int
    log: Path
    in_host: bool = False
    joined_file: Path | None = None
    dispensable: bool = False


@dataclass
class Supervisor:
    """Looks after one training.

    Args:
        server: what started the processes.
        output_dir: where they leave their signs of life.
        world_size: number of ranks.
        dilation: real seconds per virtual second.
        memory: watches what the ranks hold.
        tolerates_loss: whether training goes on without a worker that was killed.

    Attributes:
        lost: workers and dispensable processes that were killed while training went on
            without them.
    """

    server: ForkServer
    output_dir: WorkerOutputDir
    world_size: int
    dilation: float
    memory: MemoryWatch = field(default_factory=lambda: MemoryWatch({}))
    tolerates_loss: bool = False
    lost: list[SupervisedProcess] = field(default_factory=list)
    processes: dict[int, SupervisedProcess] = field(default_factory=dict)
    _killed_pids: set[int] = field(default_factory=set)
    _ended_pids: set[int] = field(default_factory=set)
    _hang_detector: HangDetector = field(init=False)

    def __post_init__(self) -> None:
        self._hang_detector = HangDetector(self.dilation)

    def add_process(self, process: SupervisedProcess) -> None:
        """Look after one more process."""
        self.processes[process.pid] = process

    def has_run(self, rank: int) -> bool:
        """Whether there ever was a process of this rank."""
        return any(process.rank == rank for process in self.processes.values())

    def kill_rank(self, rank: int) -> bool:
        """Kill a rank's process, whose end is no failure then; whether there was one."""
        process = self._list_running().get(rank)
        if process is None:
            return False
        self._killed_pids.add(process.pid)
        return self.server.kill(process.pid)

    def _list_running(self) -> dict[int, SupervisedProcess]:
        """Every rank's process that has not ended."""
        return {
            each.rank: each
            for each in self.processes.values()
            if each.rank >= 0 and each.pid not in self._ended_pids
        }

    def check(self, timeout_s: float = 0.1) -> None:
        """Wait at most `timeout_s` seconds for news.

        Raises:
            WorkerError: a process failed, hangs or is too big for its host; it names the one that
                caused it.
        """
        failed = self._poll_failures(timeout_s)
        if failed:
            raise self._create_death_error(failed + self._poll_failures(BLAME_GRACE_S))
        self._check_memory()
        self._check_hanging()

    def wait_for(self, paths: Sequence[Path], timeout_s: float, waiting_for: str) -> None:
        """Wait until every file exists, failing as soon as a process does.

        Raises:
            WorkerError: a process failed, or `timeout_s` real seconds passed.
        """
        deadline = time.monotonic() + timeout_s
        while missing := [path for path in paths if not path.exists()]:
            self.check(0.02)
            if time.monotonic() > deadline:
                names = ", ".join(path.name for path in missing[:8])
                raise WorkerError(
                    f"{waiting_for}: still missing {names} after {timeout_s:.0f} s",
                    -1,
                    "the continuum",
                )

    def wait_for_exits(self, timeout_s: float) -> None:
        """Wait for every rank to end by itself after the last step.

        Raises:
            WorkerError: one failed, or did not end within `timeout_s` real seconds.
        """
        deadline = time.monotonic() + timeout_s
        while running := [
            p for p in self.processes.values() if p.rank >= 0 and p.pid not in self._ended_pids
        ]:
            if failed := self._poll_failures(0.1):
                raise self._create_death_error(failed)
            if time.monotonic() > deadline:
                process = running[0]
                raise WorkerError(
                    "did not end after the last step",
                    process.rank,
                    process.host,
                    read_log_tail(process.log),
                )

    def wait_for_process(self, name: str, timeout_s: float) -> None:
        """Give a process that is no rank at most `timeout_s` real seconds to end by itself."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and any(
            each.name == name and each.pid not in self._ended_pids
            for each in self.processes.values()
        ):
            self._poll_failures(0.05)

    def _poll_failures(self, timeout_s: float) -> list[Exit]:
        exits = self.server.exits(timeout_s)
        self._ended_pids.update(exit_.pid for exit_ in exits)
        return [exit_ for exit_ in exits if exit_.status != 0 and not self._is_tolerated(exit_)]

    def _is_tolerated(self, exit_: Exit) -> bool:
        """Whether training goes on: a dispensable process ended, or a worker was killed, another is
        left, and the strategy can do without it.
        """
        process = self.processes[exit_.pid]
        if process.dispensable:
            self.lost.append(process)
            return True
        if exit_.pid in self._killed_pids or self._missed_training(process):
            return True
        others = [
            each
            for each in self.processes.values()
            if each.rank >= 0
            and each not in self.lost
            and each.pid not in self._killed_pids
            and each != process
        ]
        tolerated = (
            self.tolerates_loss
            and process.rank >= 0
            and exit_.status < 0
            and self.output_dir.zero.exists()
            and bool(others)
        )
        if tolerated:
            self.lost.append(process)
        return tolerated

    def _missed_training(self, process: SupervisedProcess) -> bool:
        """Whether training was over before a worker could join it."""
        return (
            process.joined_file is not None
            and not process.joined_file.exists()
            and self.output_dir.done.exists()
        )

    def _create_death_error(self, failed: Sequence[Exit]) -> WorkerError:
        culprit = min(failed, key=self._rank_innocence)
        process = self.processes[culprit.pid]
        exit_text = (
            f"killed by signal {-culprit.status}"
            if culprit.status < 0
            else f"exit status {culprit.status}"
        )
        return WorkerError(
            f"{process.name} died ({exit_text})",
            process.rank,
            process.host,
            read_log_tail(process.log),
        )

    def _rank_innocence(self, exit_: Exit) -> tuple[bool, bool]:
        """What a peer's death does to a worker is an error about a connection, in its log, and exit
        status 1.
        """
        return (exit_.status > 0, is_peer_failure(read_log_tail(self.processes[exit_.pid].log)))

    def _check_memory(self) -> None:
        overrun = self.memory.look(
            (each.host, each.pid)
            for each in self.processes.values()
            if each.in_host and each.pid not in self._ended_pids
        )
        if overrun is not None:
            largest_process = self.processes[overrun.pid]
            raise WorkerError(str(overrun), largest_process.rank, largest_process.host)

    def _check_hanging(self) -> None:
        if not self.output_dir.zero.exists():
            return
        last, now_ns = (
            read_heartbeats(self.output_dir.heartbeat, self.world_size),
            time.monotonic_ns(),
        )
        processes = self._list_running()
        pids = {rank: process.pid for rank, process in processes.items()}
        # What a rank that is gone did last, be there another in its place or not, holds nobody up.
        beats = [
            beat if pids.get(beat.rank) == beat.pid else replace(beat, time_ns=0) for beat in last
        ]
        beat = self._hang_detector.find_hung_rank(
            beats, now_ns, lambda rank: read_process_state(pids.get(rank, 0))
        )
        if beat is not None:
            hung = processes[beat.rank]
            raise WorkerError(
                f"{hung.name} {format_hang(beat, now_ns)}",
                hung.rank,
                hung.host,
                read_log_tail(hung.log),
            )
