"""Watches the ranks of a remote training by what their nodes' agents tell: who died, who hangs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from laggard.core.errors import WorkerError
from laggard.remote.agent.messages import (
    AgentMessage,
    FirstStepBegan,
    MemoryExceeded,
    NodeHeartbeats,
    NodeSample,
    ProcessEnded,
    RankHeartbeat,
    RankReady,
    Scalar,
    TrainingDone,
    TrainingProgress,
)
from laggard.remote.agent_pool import AgentPool
from laggard.remote.fidelity_monitors import NodeFidelityMonitors
from laggard.supervision.hang_detection import HangDetector, ProcessState, format_hang
from laggard.supervision.peer_failure import BLAME_GRACE_S, is_peer_failure
from laggard.workloads.tracing.heartbeat import PHASES, Beat

_POLL_S = 0.05


@dataclass
class RemoteSupervisor:
    """Looks after one training.

    Args:
        agent_pool: the agents.
        hosts_by_rank: name of each rank's host.
        has_server: whether there is a server, whose number follows the ranks'.
        tolerates_loss: whether training goes on without a rank that was killed.

    Attributes:
        fidelity_monitors: look at the nodes from the first step to the last.
        lost: ranks that were killed while training went on without them.
    """

    agent_pool: AgentPool
    hosts_by_rank: Sequence[str]
    has_server: bool = False
    tolerates_loss: bool = False
    lost: list[int] = field(default_factory=list)
    ready_ranks: set[int] = field(default_factory=set)
    zero_ns: int | None = None
    done: dict[str, Scalar] | None = None
    progress: list[dict[str, Scalar]] = field(default_factory=list)
    fidelity_monitors: NodeFidelityMonitors = field(default_factory=NodeFidelityMonitors)
    _beats: dict[int, tuple[float, RankHeartbeat]] = field(default_factory=dict)
    _hang_watch: HangDetector = field(default_factory=HangDetector)
    _failed: list[tuple[str, ProcessEnded]] = field(default_factory=list)

    def check(self, timeout_s: float = _POLL_S) -> None:
        """Take in what has been told, waiting at most `timeout_s` seconds for something.

        Raises:
            WorkerError: a rank failed, hangs or is too big for its host; it names the one that
                caused it.
            DeploymentError: an agent is gone.
        """
        self._receive(timeout_s)
        if self._failed:
            deadline_s = time.monotonic() + BLAME_GRACE_S
            while (left_s := deadline_s - time.monotonic()) > 0:
                self._receive(left_s)
            raise self._make_worker_error()
        if self.zero_ns is not None and self.done is None:
            self._check_hanging()

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until all ranks have met, and the server is there.

        Raises:
            WorkerError: one failed, or `timeout_s` seconds passed.
        """
        deadline_s = time.monotonic() + timeout_s
        world = len(self.hosts_by_rank)
        while missing := set(range(world + self.has_server)) - self.ready_ranks:
            self.check()
            if time.monotonic() > deadline_s:
                rank = min(missing)
                if rank == world:
                    raise WorkerError(
                        f"the server did not begin within {timeout_s:.0f} s", -1, "the continuum"
                    )
                message = (
                    f"the workers did not meet within {timeout_s:.0f} s: {len(missing)} of them are"
                    " missing"
                )
                raise WorkerError(message, rank, self.hosts_by_rank[rank])

    def wait_zero(self, timeout_s: float) -> int:
        """When the first step began, reference clock; raises as `wait_ready`."""
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

    def _receive(self, timeout_s: float) -> None:
        for event in self.agent_pool.poll_events(timeout_s):
            self._handle_message(event.host, event.message)

    def _handle_message(self, host: str, message: AgentMessage) -> None:
        if isinstance(message, RankReady):
            self.ready_ranks.add(message.rank)
        elif isinstance(message, FirstStepBegan):
            self.zero_ns = message.time_ns
            self.fidelity_monitors.start_monitoring()
        elif isinstance(message, TrainingDone):
            self.done = message.document
        elif isinstance(message, TrainingProgress):
            self.progress.extend(message.lines)
        elif isinstance(message, NodeHeartbeats):
            self._beats |= {beat.rank: (time.monotonic(), beat) for beat in message.heartbeats}
        elif isinstance(message, NodeSample):
            if self.done is None:
                self.fidelity_monitors.add(host, message)
        elif isinstance(message, MemoryExceeded):
            raise WorkerError(message.text, message.rank, host)
        elif (
            isinstance(message, ProcessEnded)
            and message.status != 0
            and not self._is_tolerated(message)
        ):
            self._failed.append((host, message))

    def _is_tolerated(self, ended: ProcessEnded) -> bool:
        """Whether training goes on: a rank was killed, another is left, and the strategy can do
        without it.
        """
        left = len(self.hosts_by_rank) - len(self.lost) - 1
        tolerated = (
            self.tolerates_loss
            and ended.rank >= 0
            and ended.status < 0
            and self.zero_ns is not None
            and left > 0
        )
        if tolerated:
            self.lost.append(ended.rank)
        return tolerated

    def _make_worker_error(self) -> WorkerError:
        """The first to die of itself: what a peer's death does is an error about a connection, and
        exit status 1.
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
        if rank not in self._beats:
            return ProcessState(0.0, stopped=False)
        beat = self._beats[rank][1]
        return ProcessState(beat.cpu_s, beat.stopped)

    def _to_beat(self, rank: int, now_s: float) -> Beat:
        if (
            rank not in self._beats or rank in self.lost
        ):  # what one that is gone did last holds nobody up
            return Beat(rank, 0, PHASES[0], 0, 0)
        received_s, beat = self._beats[rank]
        age_s = beat.age_s + now_s - received_s
        return Beat(rank, beat.step, PHASES[beat.phase], round((now_s - age_s) * 1e9), 0)
