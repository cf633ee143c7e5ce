"""Rules about which node may report what; pure.

A node reports about its own ranks, processes and logs. Only the head and the evaluator's node
report about the training as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from laggard.remote.agent.messages import (
    AgentMessage,
    AgentPlan,
    AgentStarted,
    CheckpointWritten,
    FirstStepBegan,
    LogChunk,
    MemoryExceeded,
    NodeHeartbeats,
    ProcessEnded,
    RankReady,
    TrainingDone,
    TrainingProgress,
)
from laggard.workloads.coordination.barrier_relay import Arrived, LastStep, Opened, StopRequested
from laggard.workloads.coordination.progress_relay import (
    Counted,
    PartGiven,
    PartPiece,
    SessionBegan,
    SessionEnded,
    SnapshotRequested,
    StageReached,
    TrainingOver,
)

_LOG_KINDS = ("evaluator", "preparer", "sampler", "server", "imports")


@dataclass(frozen=True)
class NodeRole:
    """Part of a node in a training.

    Attributes:
        host: name of the node's host.
        ranks: ranks on the node.
        world_size: number of ranks of the training.
        has_server: whether the parameter server is on the node.
        is_evaluator: whether the node decides the end of training.
        is_head: whether the rank that opens the barriers is on the node.
        most_lives: most processes that a rank of the node has, one after another.
    """

    host: str
    ranks: frozenset[int]
    world_size: int
    has_server: bool
    is_evaluator: bool
    is_head: bool
    most_lives: int

    def find_violation(self, message: AgentMessage) -> str:
        """Return the rule that a message of this node breaks; empty if there is none."""
        if (
            isinstance(message, FirstStepBegan | CheckpointWritten | Opened | LastStep)
            and not self.is_head
        ):
            return f"only the node of the rank that opens the barriers may send {message.kind}"
        if (
            isinstance(message, TrainingDone | TrainingProgress | SnapshotRequested | TrainingOver)
            and not self.is_evaluator
        ):
            return f"only the evaluator's node may send {message.kind}"
        if isinstance(message, StopRequested):
            return f"only the controller may send {message.kind}"
        if isinstance(message, AgentStarted) and message.host != self.host:
            return f"it says that it is {message.host}"
        if isinstance(message, LogChunk) and message.name not in self._list_log_names():
            return f"it has no log named {message.name}"
        return self._find_foreign_rank(message)

    def _find_foreign_rank(self, message: AgentMessage) -> str:
        own = self.ranks
        if isinstance(message, RankReady) and self.has_server:
            own |= {self.world_size}
        if isinstance(message, ProcessEnded | MemoryExceeded):
            own |= {-1}
        if isinstance(message, SessionEnded):
            # A rank also reports the death of a peer.
            own = frozenset(range(self.world_size))
        ranks = (
            [beat.rank for beat in message.heartbeats]
            if isinstance(message, NodeHeartbeats)
            else [message.rank]
            if isinstance(
                message,
                RankReady
                | ProcessEnded
                | MemoryExceeded
                | Arrived
                | Counted
                | PartPiece
                | PartGiven
                | SessionBegan
                | SessionEnded
                | StageReached,
            )
            else []
        )
        foreign = [rank for rank in ranks if rank not in own]
        return f"rank {foreign[0]} is not one of its ranks" if foreign else ""

    def _list_log_names(self) -> frozenset[str]:
        processes = (f"{kind}-{self.host}" for kind in _LOG_KINDS)
        first = (f"rank-{rank}" for rank in self.ranks)
        later = (
            f"rank-{rank}.{life}" for rank in self.ranks for life in range(2, self.most_lives + 1)
        )
        return frozenset(f"{name}.log" for name in (*processes, *first, *later))


def assign_roles(plans: Mapping[str, AgentPlan]) -> Mapping[str, NodeRole]:
    """Return the role of every node, by host name."""
    world_size = sum(len(plan.workers) for plan in plans.values())
    return {
        host: NodeRole(
            host,
            frozenset(worker.rank for worker in plan.workers),
            world_size,
            plan.server is not None,
            plan.evaluator is not None,
            any(worker.opens for worker in plan.workers),
            plan.most_lives,
        )
        for host, plan in plans.items()
    }
