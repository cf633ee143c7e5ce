"""Supervision of a training's processes: deaths, hangs and progress."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from laggard.core.errors import WorkerError
from laggard.core.files.disk_space import describe_full_disk
from laggard.layers_services.local.launch import Exit, ForkServer
from laggard.network_emulation.memory.watch import MemoryWatch
from laggard.supervision.hang_detection import HangDetector, format_hang, read_process_state
from laggard.supervision.log_tail import read_log_tail
from laggard.supervision.peer_failure import BLAME_GRACE_S, is_peer_failure
from laggard.workloads.output.worker_output import WorkerOutputDir
from laggard.workloads.tracing.heartbeat import read_heartbeats


@dataclass(frozen=True)
class SupervisedProcess:
    """Process of the training.

    Attributes:
        name: name for messages.
        rank: rank of a worker; -1 for other processes.
        host: host of the process.
        pid: process ID.
        log: file of its output.
        in_host: whether the process runs in a host of the continuum.
        joined_file: file that exists once the worker has joined; None for a worker that was there
            from the start.
        dispensable: whether training continues without the process.
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
    """Supervisor of one training.

    Args:
        server: fork server that started the processes.
        output_dir: folder with the processes' signs of life.
        world_size: number of ranks.
        dilation: real seconds per virtual second.
        memory: watch on the memory that the ranks hold.
        tolerates_loss: whether training continues after a worker was killed.

    Attributes:
        lost: workers and dispensable processes that were killed while training continued without
            them.
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
        """Supervise one more process."""
        self.processes[process.pid] = process

    def find_last_process(self, rank: int) -> SupervisedProcess:
        """Return the process of a rank that was started last."""
        return [each for each in self.processes.values() if each.rank == rank][-1]

    def kill_rank(self, rank: int) -> bool:
        """Kill a rank's process, so that its end is no failure; return whether it was running."""
        process = self._list_running().get(rank)
        if process is None:
            return False
        self._killed_pids.add(process.pid)
        return self.server.kill(process.pid)

    def _list_running(self) -> dict[int, SupervisedProcess]:
        """Return every rank's process that has not ended, by rank."""
        return {
            each.rank: each
            for each in self.processes.values()
            if each.rank >= 0 and each.pid not in self._ended_pids
        }

    def check(self, timeout_s: float = 0.1) -> None:
        """Wait at most `timeout_s` seconds for events, and check all processes.

        Raises:
            WorkerError: a process failed, hangs or exceeds its host's memory; the error names the
                process that caused it.
        """
        failed = self._poll_failures(timeout_s)
        if failed:
            # The first death to be noticed may be a victim's; wait for the one that caused it.
            raise self._create_death_error(failed + self._poll_failures(BLAME_GRACE_S))
        self._check_memory()
        self._check_hanging()

    def wait_for(self, paths: Sequence[Path], timeout_s: float, waiting_for: str) -> None:
        """Wait until every file exists; fail as soon as a process fails.

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
        """Wait for every rank to exit by itself after the last step.

        Raises:
            WorkerError: a rank failed, or did not exit within `timeout_s` real seconds.
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
                    f"did not exit within {timeout_s:.0f} s after the last step",
                    process.rank,
                    process.host,
                    read_log_tail(process.log),
                )

    def wait_for_process(self, name: str, timeout_s: float) -> None:
        """Wait at most `timeout_s` real seconds for a process other than a rank to exit."""
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
        """Return whether training continues after this exit.

        It does if the process is dispensable, was killed on purpose, or was a joining worker that
        came too late. It also does if a worker was killed by a signal after the start, the
        strategy supports the loss of a worker, and another worker is left.
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
        """Return whether training ended before this worker could join it."""
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
        full_disk = describe_full_disk(self.output_dir.folder)
        reason = f": {full_disk}" if full_disk else ""
        return WorkerError(
            f"{process.name} died ({exit_text}){reason}",
            process.rank,
            process.host,
            read_log_tail(process.log),
        )

    def _rank_innocence(self, exit_: Exit) -> tuple[bool, bool]:
        """Return a sort key: the process that probably caused the failure comes first.

        The death of a peer makes a worker exit with status 1 and an error about a connection in
        its log. Such a worker is a victim.
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
        """Raise an error that names the hung rank, if there is one after the first step began."""
        if not self.output_dir.zero.exists():
            return
        last, now_ns = (
            read_heartbeats(self.output_dir.heartbeat, self.world_size),
            time.monotonic_ns(),
        )
        processes = self._list_running()
        pids = {rank: process.pid for rank, process in processes.items()}
        # The last beat of a process that is gone does not count, even if another process has taken
        # over its rank: a beat of time 0 stands for "none yet".
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
