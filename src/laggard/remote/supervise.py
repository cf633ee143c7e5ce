"""Supervision of a remote training's ranks, from the messages of the nodes' agents."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from laggard.core.errors import WorkerError
from laggard.core.node_values import Scalar
from laggard.remote.agent.messages import (
    AgentMessage,
    CheckpointWritten,
    FirstStepBegan,
    MemoryExceeded,
    NodeHeartbeats,
    NodeSample,
    ProcessEnded,
    RankHeartbeat,
    RankReady,
    TrainingDone,
    TrainingProgress,
)
from laggard.remote.agent_pool import AgentPool
from laggard.remote.fidelity_monitors import NodeFidelityMonitors
from laggard.remote.files.checkpoint_copies import CheckpointCopies
from laggard.supervision.hang_detection import HangDetector, ProcessState, format_hang
from laggard.supervision.peer_failure import BLAME_GRACE_S, is_peer_failure
from laggard.workloads.output.training_end import TrainingEnd
from laggard.workloads.tracing.heartbeat import PHASES, Beat

POLL_S = 0.05


@dataclass
class RemoteSupervisor:
    """Supervisor of one remote training: detects ranks that died or hang.

    Args:
        agent_pool: agents of all nodes.
        hosts_by_rank: host name of every rank.
        has_server: whether there is a parameter server; its number is the number of ranks.
        tolerates_loss: whether training continues without a rank that was killed.
        checkpoints: copier of the training's checkpoints; None if they are fetched at the end only.
        absent: ranks without a process: at first those that join later, then also those that left
            or were lost.

    Attributes:
        lost: ranks that were killed by something else than the run while training continued
            without them.
        ready_ranks: numbers of the ranks, and the server, that are ready to train.
        zero_ns: time of the first step, reference clock; None before it.
        done: content of `done.json`; None before training ended.
        progress: lines of `progress.jsonl` received so far.
        fidelity_monitors: fidelity monitors of all nodes.
    """

    agent_pool: AgentPool
    hosts_by_rank: Sequence[str]
    has_server: bool = False
    tolerates_loss: bool = False
    checkpoints: CheckpointCopies | None = None
    absent: set[int] = field(default_factory=set)
    lost: list[int] = field(default_factory=list)
    ready_ranks: set[int] = field(default_factory=set)
    zero_ns: int | None = None
    done: TrainingEnd | None = None
    progress: list[dict[str, Scalar]] = field(default_factory=list)
    fidelity_monitors: NodeFidelityMonitors = field(default_factory=NodeFidelityMonitors)
    _beats: dict[int, tuple[float, RankHeartbeat]] = field(default_factory=dict)
    _joining: set[int] = field(default_factory=set)
    _expected_deaths: Counter[int] = field(default_factory=Counter)
    _last_words: dict[int, str] = field(default_factory=dict)
    _hang_watch: HangDetector = field(default_factory=HangDetector)
    _failed: list[tuple[str, ProcessEnded]] = field(default_factory=list)

    def check(self, timeout_s: float = POLL_S) -> None:
        """Process the messages that have arrived, waiting at most `timeout_s` for the first.

        Raises:
            WorkerError: a rank failed, hangs or exceeds its host's memory; it names the rank that
                caused the failure.
            DeploymentError: an agent is lost.
        """
        self._receive(timeout_s)
        if self._failed:
            # A dead rank makes its peers fail too. Wait for the other failures, then blame the
            # first cause.
            deadline_s = time.monotonic() + BLAME_GRACE_S
            while (left_s := deadline_s - time.monotonic()) > 0:
                self._receive(left_s)
            raise self._make_worker_error()
        if self.zero_ns is not None and self.done is None:
            self._check_hanging()

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until all present ranks have connected to each other and the server is ready.

        Raises:
            WorkerError: a rank failed, or `timeout_s` seconds passed.
        """
        deadline_s = time.monotonic() + timeout_s
        world = len(self.hosts_by_rank)
        expected = set(range(world + self.has_server)) - self.absent
        while missing := expected - self.ready_ranks:
            self.check()
            if time.monotonic() > deadline_s:
                rank = min(missing)
                if rank == world:
                    raise WorkerError(
                        f"the parameter server was not ready within {timeout_s:.0f} s",
                        -1,
                        "the continuum",
                    )
                message = (
                    f"the workers did not connect to each other within {timeout_s:.0f} s:"
                    f" {len(missing)} of them are missing"
                )
                raise WorkerError(message, rank, self.hosts_by_rank[rank])

    def wait_zero(self, timeout_s: float) -> int:
        """Wait for the first step and return its time on the reference clock, in ns.

        Raises:
            WorkerError: a rank failed, or `timeout_s` seconds passed.
        """
        deadline_s = time.monotonic() + timeout_s
        while self.zero_ns is None:
            self.check()
            if time.monotonic() > deadline_s:
                raise WorkerError(
                    f"the first step did not begin within {timeout_s:.0f} s",
                    0,
                    self.hosts_by_rank[0],
                )
        return self.zero_ns

    def begin(self, zero_ns: int) -> None:
        """Watch from now on: the first step, or the experiment, began at this time.

        Args:
            zero_ns: time on the reference clock.
        """
        self.zero_ns = zero_ns
        self.fidelity_monitors.start_monitoring()

    def expect_joining(self, rank: int) -> None:
        """Expect that a rank's new process becomes ready, or comes too late for the training."""
        self.ready_ranks.discard(rank)
        self.absent.discard(rank)
        self._joining.add(rank)

    def has_joined(self, rank: int) -> bool:
        """Return whether a rank whose new process was expected has joined."""
        if rank in self.ready_ranks:
            self._joining.discard(rank)
        return rank in self.ready_ranks

    def expect_death(self, rank: int) -> None:
        """Expect the death of a rank's process, which the run has killed."""
        self._expected_deaths[rank] += 1
        self._joining.discard(rank)
        self._remove(rank)

    def read_last_words(self, rank: int) -> str:
        """Return the end of the log of a rank's last process that ended."""
        return self._last_words.get(rank, "")

    def _remove(self, rank: int) -> None:
        """Expect nothing of a rank; its last phase is none that other ranks wait for."""
        self.absent.add(rank)
        self._beats.pop(rank, None)

    def _receive(self, timeout_s: float) -> None:
        for event in self.agent_pool.poll_events(timeout_s):
            self._handle_message(event.host, event.message)

    def _handle_message(self, host: str, message: AgentMessage) -> None:
        if isinstance(message, RankReady):
            self.ready_ranks.add(message.rank)
        elif isinstance(message, NodeHeartbeats):
            received_s = time.monotonic()
            present = [beat for beat in message.heartbeats if beat.rank not in self.absent]
            self._beats |= {beat.rank: (received_s, beat) for beat in present}
        elif isinstance(message, NodeSample):
            if self.done is None:
                self.fidelity_monitors.add(host, message)
        elif isinstance(message, MemoryExceeded):
            raise WorkerError(message.text, message.rank, host)
        elif isinstance(message, ProcessEnded):
            self._handle_end(host, message)
        else:
            self._handle_milestone(message)

    def _handle_milestone(self, message: AgentMessage) -> None:
        """Handle a message about the training as a whole."""
        if isinstance(message, FirstStepBegan):
            self.begin(message.time_ns)
        elif isinstance(message, TrainingProgress):
            self.progress.extend(message.lines)
        elif isinstance(message, TrainingDone):
            self.done = message.document
        elif isinstance(message, CheckpointWritten) and self.checkpoints is not None:
            self.checkpoints.fetch(message.size_bytes)

    def _handle_end(self, host: str, ended: ProcessEnded) -> None:
        self._last_words[ended.rank] = ended.log_tail
        if ended.status != 0 and not self._is_tolerated(ended):
            self._failed.append((host, ended))

    def _is_tolerated(self, ended: ProcessEnded) -> bool:
        """Return whether training continues without the process that ended.

        It does if the run has killed it, or if it was to join and came too late. It also does if a
        rank was killed during training, another rank is left, and the strategy supports the loss of
        ranks.
        """
        if ended.status < 0 and self._expected_deaths[ended.rank]:
            self._expected_deaths[ended.rank] -= 1
            return True
        if ended.rank in self._joining and self.done is not None:
            return True
        present = set(range(len(self.hosts_by_rank))) - self.absent
        tolerated = (
            self.tolerates_loss
            and ended.rank >= 0
            and ended.status < 0
            and self.zero_ns is not None
            and bool(present - {ended.rank})
        )
        if tolerated:
            self.lost.append(ended.rank)
            self._remove(ended.rank)
        return tolerated

    def _make_worker_error(self) -> WorkerError:
        """Return the error about the failure that came first.

        The sort puts processes that were killed before those that exited. Of the latter, a log
        that ends with a lost connection blames a peer and comes last.
        """
        host, ended = min(
            self._failed, key=lambda each: (each[1].status > 0, is_peer_failure(each[1].log_tail))
        )
        how = (
            f"killed by signal {-ended.status}"
            if ended.status < 0
            else f"exit status {ended.status}"
        )
        return WorkerError(f"{ended.name} died ({how})", ended.rank, host, ended.log_tail)

    def _check_hanging(self) -> None:
        now_s = time.monotonic()
        beats, now_ns = (
            tuple(self._to_beat(rank, now_s) for rank in range(len(self.hosts_by_rank))),
            round(now_s * 1e9),
        )
        beat = self._hang_watch.find_hung_rank(beats, now_ns, self._get_condition)
        if beat is not None:
            raise WorkerError(
                f"rank {beat.rank} {format_hang(beat, now_ns)}",
                beat.rank,
                self.hosts_by_rank[beat.rank],
            )

    def _get_condition(self, rank: int) -> ProcessState:
        """Return the CPU time of a rank, and whether it is stopped, from its last heartbeat."""
        if rank not in self._beats:
            return ProcessState(0.0, stopped=False)
        beat = self._beats[rank][1]
        return ProcessState(beat.cpu_s, beat.stopped)

    def _to_beat(self, rank: int, now_s: float) -> Beat:
        """Return a rank's last heartbeat, with its time on this machine's clock."""
        if rank not in self._beats:
            return Beat(rank, 0, PHASES[0], 0, 0)
        received_s, beat = self._beats[rank]
        age_s = beat.age_s + now_s - received_s
        return Beat(rank, beat.step, PHASES[beat.phase], round((now_s - age_s) * 1e9), 0)
