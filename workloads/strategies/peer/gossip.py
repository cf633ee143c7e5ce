"""Decentralized parallel SGD: each rank averages its model with its neighbors' models.

It needs neither a server nor collectives. X. Lian et al., "Can Decentralized Algorithms Outperform
Centralized Algorithms? A Case Study for Decentralized Parallel Stochastic Gradient Descent", NIPS
2017, algorithm 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from laggard.core.rules.graph import Graph, compute_mixing_weights, find_neighbors
from laggard.core.span_schema import Phase
from laggard.workloads.strategies.base.parameters import PeerParameters
from laggard.workloads.strategies.base.peer_connections import JoinState, build_stamped_message
from laggard.workloads.strategies.base.peer_strategy_base import PeerStrategyBase
from laggard.workloads.tracing.step_result import StepResult
from laggard.workloads.transport.frames import Message

if TYPE_CHECKING:
    import torch

    from laggard.workloads.datasets.dataset import Batch
    from laggard.workloads.datasets.partition import Share
    from laggard.workloads.strategies.base.strategy import TrainingContext


MODEL_MESSAGE = 2
"""Kind of a message with the sender's model. Version: the step that the sender is in."""


class GossipParameters(PeerParameters):
    """Parameters of `gossip`: in each step every rank averages its model with its neighbors'.

    This is D-PSGD (Lian et al., NIPS 2017).
    """

    reference: ClassVar[str] = "D-PSGD: Lian et al., NIPS 2017"
    summary: ClassVar[str] = (
        "no server: in each step every worker averages its model with the models of its "
        "neighbors in the `graph` (`ring` or `complete`)"
    )
    name: Literal["gossip"]
    graph: Graph = Field(default="ring", description="graph of the neighbors")

    def create_worker(self, context: TrainingContext) -> Gossip:
        """Create one rank's side (see `Parameters`)."""
        return Gossip(self, context)


class Gossip(PeerStrategyBase):
    """Worker of `gossip`: x_i <- (sum over neighbors j of W_ij x_j) - lr * g_i(x_i before).

    W is symmetric and its rows sum to 1. Models are sent before the gradient is computed, so they
    travel in the meantime. When a rank is lost or joins, the graph is rebuilt from the present
    ranks. A neighbor's model may then be of a later step than this rank's.

    Args:
        parameters: graph of the neighbors.
        context: training context of the rank.
    """

    def __init__(self, parameters: GossipParameters, context: TrainingContext) -> None:
        import torch

        super().__init__(context)
        self._graph = parameters.graph
        # Several per neighbor, because a neighbor may be some steps ahead.
        self._received: dict[int, list[Message]] = {rank: [] for rank in range(context.world_size)}
        self._notified: set[int] = set()
        self._mine = torch.empty(0)
        self._peers.join_handler = self

    def join(self) -> None:
        """Copy the model of a present rank and begin with its step (see `AsyncStrategy`)."""
        join_state = self._peers.join()
        if join_state is not None:
            self._step, model = join_state
            self._state.write(model.to(self._context.device))

    def join_state(self) -> JoinState:
        """Return this step and the model that it began with (see `JoinHandler`)."""
        return self._step, self._mine

    # The step does not matter: models of later steps are accepted, too.
    def add_member(self, rank: int, step: int) -> None:  # noqa: ARG002
        """Send the rank this step's model again if it is a neighbor (see `JoinHandler`)."""
        self._received[rank].clear()
        self._notified.discard(rank)

    def step(self, step: int, batch: Batch, share: Share) -> StepResult:
        """Send, compute, wait for the neighbors, average and update (see `AsyncStrategy`)."""
        recorder = self._context.recorder
        mine = self._mine = self._state.read().cpu()
        self._notified = set()
        self._send_model(mine)
        loss = self._gradient.compute(batch, share)
        since_ns = recorder.enter(Phase.COMM)
        complete = self._peers.wait(lambda: self._has_all_models(mine), self._on_message)
        # `record_wait` needs the latest message at the end.
        models = (
            sorted((self._received[rank][0] for rank in self._find_neighbors()), key=_get_sent_ns)
            if complete
            else []
        )
        waited_for = self._peers.record_wait(since_ns, models)
        recorder.enter(Phase.OPTIMIZER)
        if complete:
            self._mix(mine, models)
        self.optimizer.step()
        self._gradient.synchronize()
        recorder.enter(Phase.OTHER)
        self._step = step + 1
        return StepResult(loss, waited_for=waited_for)

    def _find_neighbors(self) -> tuple[int, ...]:
        present = sorted({self._context.rank, *self._peers.present})
        return find_neighbors(self._graph, present, self._context.rank)

    def _send_model(self, mine: torch.Tensor) -> None:
        for rank in set(self._find_neighbors()) - self._notified:
            self._notified.add(rank)
            self._peers.send(rank, build_stamped_message(MODEL_MESSAGE, self._step, mine))

    def _on_message(self, message: Message) -> None:
        self._received[message.sender].append(message)

    def _has_all_models(self, mine: torch.Tensor) -> bool:
        """Return whether every neighbor's model of this step or a later one has arrived."""
        # Ranks that became neighbors during the wait need this step's model, too.
        self._send_model(mine)
        for rank in self._find_neighbors():
            self._received[rank] = [
                message for message in self._received[rank] if message.version >= self._step
            ]
        return all(self._received[rank] for rank in self._find_neighbors())

    def _mix(self, mine: torch.Tensor, models: list[Message]) -> None:
        present = sorted({self._context.rank, *self._peers.present})
        weights = compute_mixing_weights(self._graph, present, self._context.rank)
        mixed = mine * weights[self._context.rank]
        for message in sorted(
            models, key=_get_sender
        ):  # in the order of ranks, not of arrival, so that equal trainings give equal sums
            assert message.tensor is not None
            mixed += message.tensor * weights[message.sender]
        self._state.write_average(mixed, mine)


def _get_sender(message: Message) -> int:
    return message.sender


def _get_sent_ns(message: Message) -> int:
    return message.values[0]
