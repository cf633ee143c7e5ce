"""Context that a strategy receives, and protocols that it implements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import nn

from laggard.workloads.datasets.dataset import Batch
from laggard.workloads.datasets.partition import Share
from laggard.workloads.specification.training import Objective
from laggard.workloads.strategies.base.peer_connections import PeerConnections
from laggard.workloads.tracing.recorder import Recorder
from laggard.workloads.tracing.step_result import StepResult
from laggard.workloads.transport.endpoint import Endpoint
from laggard.workloads.transport.plan import Backend

CPU_DEVICE = torch.device("cpu")


def _ignore_decision(_step: int, _sentence: str) -> None:
    """Ignore a decision."""


@dataclass(frozen=True)
class TrainingContext:
    """Model, optimizer, connections and settings of one rank.

    Collectives go over torch's default process group, which is open before and closed after.

    Attributes:
        rank: whose it is.
        tiers: the tier of every rank, in rank order.
        model: the same on all ranks, on its device.
        optimizer: of its parameters.
        recorder: told of every phase.
        device: where the model is, and batches will be.
        backend: what carries collectives.
        last_step: the last step that is allowed (from 0), where their number ends the training.
        endpoint: what carries messages to the server, node `world_size`, where the strategy has
            one.
        peers: the other ranks, where the strategy sends them messages.
        dilation: real seconds per virtual second.
        seed: the same on all ranks.
        objective: what training is to be good for.
        record_decision: told of what the strategy decides, by step, a sentence each, by one rank.
    """

    rank: int
    tiers: tuple[str, ...]
    model: nn.Module
    optimizer: torch.optim.Optimizer
    recorder: Recorder
    device: torch.device = CPU_DEVICE
    backend: Backend = "gloo"
    last_step: int | None = None
    endpoint: Endpoint | None = None
    peers: PeerConnections | None = None
    dilation: float = 1.0
    seed: int = 0
    objective: Objective = field(default_factory=Objective)
    record_decision: Callable[[int, str], None] = _ignore_decision

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.tiers)


class Strategy(Protocol):
    """One rank's side of a training strategy whose ranks all take the same steps.

    It enters the recorder's phases from the forward pass on: everything that it sends or waits for
    is in `Phase.COMM`. A collective of all ranks, or of some, has a number of its own within the
    step (`group`), the same for its members and for nobody else: by these the analysis knows who
    waited for whom.
    """

    @property
    def model(self) -> nn.Module:
        """This rank's copy of the model; after a step in which all meet, it is everybody's."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Optimizer that updates the model."""

    @property
    def weight(self) -> float:
        """Current weight of this rank's model in a mean of all."""

    def step(self, step: int, batch: Batch, share: Share) -> StepResult:
        """Learn from one batch.

        Args:
            step: its number, from 0.
            batch: this rank's samples, padded to what the model needs.
            share: which of them count, and for how much.
        """

    def next_synchronization(self, step: int) -> int:
        """The first step, from `step` on, that no rank can finish before every rank has begun it,
        and after which all have one model.

        There training ends. In other steps the mean of the ranks' models is evaluated.
        """


class AsyncStrategy(Protocol):
    """One rank's side of a strategy whose ranks each take steps of their own.

    It is told by others (a server, or its peers) when training is over. Phases are recorded as in
    `Strategy`; what waits for a peer and not for a collective has no `group`, but a `peer`.
    """

    @property
    def model(self) -> nn.Module:
        """This rank's copy of the model."""

    @property
    def next_step(self) -> int | None:
        """The number of the step to take next: its batch is this rank's share of that step. None:
        training is over.
        """

    def join(self) -> None:
        """Be brought up to date by those who train already: the model, and `next_step`. Only a rank
        that comes late is told to.
        """

    def step(self, step: int, batch: Batch, share: Share) -> StepResult:
        """Learn from one batch, as in `Strategy`."""


class ServerStrategy(AsyncStrategy, Protocol):
    """One rank's side of a strategy with a server."""

    @property
    def next_batch_range(self) -> range | None:
        """Places of the next step's batch that the server has dealt this rank; None: shares are
        even.
        """


class PeerStrategy(AsyncStrategy, Protocol):
    """One rank's side of a strategy without a server, whose ranks' models are each their own."""

    @property
    def weight(self) -> float:
        """Current weight of this rank's model in a mean of all."""


StrategyWorker = Strategy | ServerStrategy | PeerStrategy
