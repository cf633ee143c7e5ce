"""Synchronous baseline over the message transport: a ring all-reduce in every step.

P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC
2009. Comparison with `allreduce` (torch DDP over gloo) shows the cost of the transport: the update
is the same, but nothing overlaps with the backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from laggard.core.rules.synchronization import SynchronizesEveryStep
from laggard.core.span_schema import Phase
from laggard.workloads.strategies.base.local_gradient import LocalGradient
from laggard.workloads.strategies.base.parameters import BalancedParameters
from laggard.workloads.strategies.base.peer_connections import PeerConnections
from laggard.workloads.tracing.step_result import StepResult
from laggard.workloads.transport.frames import Message

if TYPE_CHECKING:
    import torch

    from laggard.workloads.datasets.dataset import Batch
    from laggard.workloads.datasets.partition import Share
    from laggard.workloads.strategies.base.strategy import TrainingContext


CHUNK_MESSAGE = 2


class RingAllReduceParameters(BalancedParameters):
    """Parameters of `ring_allreduce`: the update of `allreduce` over the message transport.

    Strategies without collectives use that transport. This baseline separates its cost from
    theirs.
    """

    reference: ClassVar[str] = "Patarasuk and Yuan, JPDC 2009"
    summary: ClassVar[str] = (
        "same update as `allreduce`, but sent over the transport of the strategies without "
        "collectives; separates the cost of that transport from the cost of those strategies"
    )
    peer_to_peer: ClassVar[bool] = True
    resumable: ClassVar[bool] = True
    name: Literal["ring_allreduce"]

    def create_worker(self, context: TrainingContext) -> RingAllReduce:
        """Create one rank's side (see `Parameters`)."""
        return RingAllReduce(self, context)


class RingAllReduce(SynchronizesEveryStep):
    """Worker of `ring_allreduce`: g <- (1/K) * (sum of all g_k); w <- w - lr * g.

    BatchNorm's statistics are averaged, too.

    Args:
        _parameters: unused; the strategy has no parameters of its own here.
        context: training context of the rank.
    """

    def __init__(self, _parameters: RingAllReduceParameters, context: TrainingContext) -> None:
        from laggard.workloads.models.flat_state import FlatState

        assert context.peers is not None
        self.model, self.optimizer = context.model, context.optimizer
        self._context, self._reducer = context, RingReducer(context.peers)
        self._gradient, self._state = LocalGradient(context), FlatState(context.model)

    def step(self, step: int, batch: Batch, share: Share) -> StepResult:
        """Run forward pass, backward pass, average and update (see `Strategy`)."""
        recorder, count = self._context.recorder, self._state.parameters
        loss = self._gradient.compute(batch, share)
        whole = self._state.read_gradients()
        sent = self._reducer.payload_bytes(whole)
        recorder.enter(Phase.COMM, group=0, payload_bytes=sent)
        self._reducer.sum(whole)
        recorder.enter(Phase.OPTIMIZER)
        whole = (whole / self._context.world_size).to(self._context.device)
        self._state.write_buffers(whole[count:])
        self._state.write_gradients(whole[:count])
        self.optimizer.step()
        self._gradient.synchronize()
        recorder.enter(Phase.OTHER)
        return StepResult(loss, read_version=step, applied_version=step + 1)

    def all_gather(self, numbers: Sequence[float], group: int) -> list[list[float]]:
        """Send some numbers to all ranks and return the numbers of every rank, by rank.

        The spans of this exchange carry the number `group`.
        """
        import torch

        recorder, context = self._context.recorder, self._context
        # A sum of vectors that are zero except for one row each is an all-gather.
        gathered = torch.zeros(context.world_size, len(numbers), dtype=torch.float64)
        gathered[context.rank] = torch.tensor(numbers, dtype=torch.float64)
        recorder.enter(
            Phase.COMM, group=group, payload_bytes=self._reducer.payload_bytes(gathered.view(-1))
        )
        self._reducer.sum(gathered.view(-1))
        recorder.enter(Phase.OTHER)
        rows: list[list[float]] = gathered.tolist()
        return rows


class RingReducer:
    """Sum of the vectors of all ranks, computed in a ring.

    Each chunk travels around the ring twice: once to be summed, once to be distributed.

    Args:
        peers: connections of this rank.
    """

    def __init__(self, peers: PeerConnections) -> None:
        self._peers, self._world_size = peers, peers.world_size
        self._next = (peers.rank + 1) % peers.world_size
        self._round = 0
        self._received: dict[int, torch.Tensor] = {}

    def payload_bytes(self, vector: torch.Tensor) -> int:
        """Return the number of bytes that this rank sends to sum such a vector."""
        import torch

        chunks = torch.tensor_split(vector, self._world_size)
        turns = range(2 * (self._world_size - 1))
        return sum(chunks[(self._peers.rank - turn) % self._world_size].nbytes for turn in turns)

    def sum(self, vector: torch.Tensor) -> None:
        """Replace a vector in host memory by the sum of all ranks' vectors.

        The result is the same on all ranks, bit for bit.
        """
        import torch

        # The chunks are views: writing to them changes `vector`.
        chunks = torch.tensor_split(vector, self._world_size)
        rank, world = self._peers.rank, self._world_size
        for turn in range(2 * (world - 1)):
            sends, takes = (rank - turn) % world, (rank - turn - 1) % world
            # A sent tensor must not change until it is acknowledged, but a later turn overwrites
            # the chunk: hence the copy.
            self._peers.send(
                self._next, Message(CHUNK_MESSAGE, self._round, (), chunks[sends].clone())
            )
            chunk = self._receive_chunk(self._round)
            # The first world - 1 turns sum the chunks, the others distribute the sums.
            if turn < world - 1:
                chunks[takes].add_(chunk)
            else:
                chunks[takes].copy_(chunk)
            self._round += 1

    def _receive_chunk(self, number: int) -> torch.Tensor:
        self._peers.wait(lambda: number in self._received, self._on_message)
        return self._received.pop(number)

    def _on_message(self, message: Message) -> None:
        assert message.tensor is not None
        self._received[message.version] = message.tensor
