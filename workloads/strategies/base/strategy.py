"""Training context that a strategy receives, and protocols that it implements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from laggard.workloads.datasets.dataset import Batch
from laggard.workloads.datasets.partition import Indices, Partition, Share
from laggard.workloads.specification.training import Objective
from laggard.workloads.strategies.base.peer_connections import PeerConnections
from laggard.workloads.tracing.recorder import Recorder
from laggard.workloads.tracing.step_result import StepResult
from laggard.workloads.transport.endpoint import Endpoint
from laggard.workloads.transport.plan import Backend

CPU_DEVICE = torch.device("cpu")


def _ignore_decision(_step: int, _sentence: str) -> None:
    """Ignore a decision: the default of a context whose decisions nobody records."""


@dataclass(frozen=True)
class DividedModel:
    """Files and functions with which ranks get parts of a model.

    Attributes:
        example: two samples of the training set, [2, ...].
        initial_model: file of the whole initial model (`write_model`).
        build_optimizer: function that builds the workload's optimizer of a module.
    """

    example: torch.Tensor
    initial_model: Path
    build_optimizer: Callable[[nn.Module], torch.optim.Optimizer]


@dataclass(frozen=True)
class TrainingContext:
    """Model, optimizer, connections and settings of one rank.

    Collectives use torch's default process group. The worker opens it before it creates the
    strategy, and closes it after training.

    Attributes:
        rank: number of this rank.
        tiers: tier of every rank, in rank order.
        model: model on its device, initially the same on all ranks.
        optimizer: optimizer of the model's parameters.
        recorder: recorder that receives every phase.
        device: device of the model and the batches.
        backend: backend of the collectives.
        same_model: whether the initial model is known to be the same on all ranks, so that the
            strategy need not broadcast it.
        last_step: last allowed step (from 0), if the number of steps ends the training.
        endpoint: endpoint for messages to the server, which is node `world_size`; None without a
            server.
        peers: connections to the other ranks, if the strategy sends them messages.
        dilation: real seconds per virtual second.
        seed: seed shared by all ranks.
        objective: quantity that training shall minimize, or fairness.
        record_decision: callback for a decision of the strategy: its step and one sentence; called
            by one rank only.
        first_step: step with which the training begins; not 0 if it goes on from a checkpoint.
        task_ends: last step of each task of the stream; none without a stream.
        is_free_rider: whether the rank is a client that answers without having trained.
        hosts: name of the host of every rank.
        divided: what the ranks need to have parts of the model, which then has no numbers; None if
            every rank has the whole model.
    """

    rank: int
    tiers: tuple[str, ...]
    model: nn.Module
    optimizer: torch.optim.Optimizer
    recorder: Recorder
    device: torch.device = CPU_DEVICE
    backend: Backend = "gloo"
    same_model: bool = False
    last_step: int | None = None
    endpoint: Endpoint | None = None
    peers: PeerConnections | None = None
    dilation: float = 1.0
    seed: int = 0
    objective: Objective = field(default_factory=Objective)
    record_decision: Callable[[int, str], None] = _ignore_decision
    first_step: int = 0
    task_ends: tuple[int, ...] = ()
    is_free_rider: bool = False
    hosts: tuple[str, ...] = ()
    divided: DividedModel | None = None

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.tiers)


class Strategy(Protocol):
    """One rank's side of a training strategy whose ranks all take the same steps.

    It enters the recorder's phases from the forward pass on: all sending and waiting belongs to
    `Phase.COMM`. Each collective has a number within the step (`group`), which its members share
    and no other collective has. The analysis uses it to find which rank waited for which.
    """

    @property
    def model(self) -> nn.Module:
        """This rank's copy of the model; identical on all ranks after a synchronization step."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Optimizer that updates the model."""

    @property
    def weight(self) -> float:
        """Current weight of this rank's model in a mean of all."""

    def step(self, step: int, batch: Batch, share: Share) -> StepResult:
        """Train on one batch.

        Args:
            step: number of the step, from 0.
            batch: this rank's samples, padded to the size that the model needs.
            share: part of the samples that counts, and its weight.
        """

    def next_synchronization(self, step: int) -> int:
        """Return the first synchronization step at or after `step`.

        No rank can finish such a step before every rank has begun it, and after it all ranks have
        the same model. Training ends only there. In other steps the mean of the ranks' models is
        evaluated.
        """


@runtime_checkable
class DividesModel(Protocol):
    """Strategy whose ranks have different parts of the model, and so steps of their own."""

    def pick_share(self, step: int, partition: Partition) -> Share:
        """Return the samples of a step that this rank needs."""

    def write_model(self, part: Callable[[int], Path]) -> None:
        """Write the whole model for an evaluation; all ranks call this.

        Args:
            part: function that returns the file of each block, which rank 0 writes.
        """

    def measure_step_ns(self) -> float:
        """Return the CPU time of this rank's passes in a step, at full speed; nothing changes."""


class AsyncStrategy(Protocol):
    """One rank's side of a strategy whose ranks each take steps of their own.

    A server or the peers tell it when training is over. Phases are recorded as in `Strategy`. A
    wait for a peer, not for a collective, has a `peer` and no `group`.
    """

    @property
    def model(self) -> nn.Module:
        """This rank's copy of the model."""

    @property
    def next_step(self) -> int | None:
        """Number of the step to take next, or None after the end of training.

        The batch of the step is this rank's share of that step's batch.
        """

    def join(self) -> None:
        """Copy the model and `next_step` from the ranks that are already training.

        Only a rank that starts late calls it.
        """

    def step(self, step: int, batch: Batch, share: Share) -> StepResult:
        """Train on one batch, as in `Strategy`."""


class ServerStrategy(AsyncStrategy, Protocol):
    """One rank's side of a strategy with a server."""

    @property
    def next_batch_range(self) -> range | None:
        """Positions in the next batch that the server assigned to this rank.

        None means that shares are equal.
        """

    def warm_up(self, share: Share, fetch: Callable[[Indices], Batch]) -> None:
        """Compute like in a step and forget it, so that the first step is as fast as later ones.

        Libraries prepare themselves for each new shape. A rank with a small share of a core would
        spend seconds on it. The model and torch's random numbers stay as they are.

        Args:
            share: samples of the rank in a step.
            fetch: function that returns the batch of some samples.
        """


class PeerStrategy(AsyncStrategy, Protocol):
    """One rank's side of a strategy without a server; each rank has its own model."""

    @property
    def weight(self) -> float:
        """Current weight of this rank's model in a mean of all."""


StrategyWorker = Strategy | ServerStrategy | PeerStrategy
