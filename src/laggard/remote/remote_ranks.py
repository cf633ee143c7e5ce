"""Processes of the ranks on the nodes, which churn starts and kills."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from laggard.remote.agent.operations import KILL_RANK, START_JOINING
from laggard.remote.agent_pool import AgentPool
from laggard.remote.supervise import RemoteSupervisor
from laggard.workloads.plan import WorkerPlan


@dataclass
class RemoteRanks:
    """Processes of the ranks on the nodes (`RankProcesses`).

    Two ranks of a strategy without a server that join at once, on two nodes, would not learn of
    each other in time: each looks at its own node for the ranks that are present. Therefore such
    ranks join one after another.

    Args:
        agent_pool: agents of all nodes.
        watch: supervisor, which must know whose death or arrival to expect.
        one_at_a_time: whether a rank is started only when no other one is joining.
    """

    agent_pool: AgentPool
    watch: RemoteSupervisor
    one_at_a_time: bool
    _joining: int | None = None
    _waiting: deque[WorkerPlan] = field(default_factory=deque)

    def start_joining(self, plan: WorkerPlan) -> None:
        """Start the process of a rank that joins, or let it wait for its turn."""
        if self.one_at_a_time and self._joining is not None:
            self._waiting.append(plan)
        else:
            self._start(plan)

    def _start(self, plan: WorkerPlan) -> None:
        self._joining = plan.rank
        self.watch.expect_joining(plan.rank)
        self.agent_pool.call(plan.host, START_JOINING, {"rank": plan.rank})

    def has_joined(self, rank: int) -> bool:
        """Return whether the last process of a rank has joined."""
        if not self.watch.has_joined(rank):
            return False
        self._finish_joining(rank)
        return True

    def kill_rank(self, rank: int) -> bool:
        """Kill a rank's process and return whether it was running."""
        waiting = [plan for plan in self._waiting if plan.rank == rank]
        for plan in waiting:
            self._waiting.remove(plan)
        host = self.watch.hosts_by_rank[rank]
        was_running = not waiting and self.agent_pool.call(host, KILL_RANK, {"rank": rank})
        if was_running:
            self.watch.expect_death(rank)
        self._finish_joining(rank)
        return was_running

    def _finish_joining(self, rank: int) -> None:
        if self._joining == rank:
            self._joining = None
            if self._waiting:
                self._start(self._waiting.popleft())

    def read_last_words(self, rank: int) -> str:
        """Return the end of the log of a rank's last process that ended."""
        return self.watch.read_last_words(rank)
