"""Training of a client in one round: some passes over its own samples, from the model it was sent.

The same code trains clients that compute at their own speed, and those of a simulation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from laggard.core.span_schema import Phase
from laggard.workloads.clients.local_steps import list_local_steps
from laggard.workloads.datasets.dataset import Batch
from laggard.workloads.datasets.partition import Share
from laggard.workloads.models.flat_state import FlatState
from laggard.workloads.tracing.batch_loader import fewest_samples
from laggard.workloads.tracing.compute_meter import ComputeMeter
from laggard.workloads.tracing.device_clock import device_clock


@dataclass(frozen=True)
class LocalTraining:
    """Settings of a client's round.

    Attributes:
        epochs: passes over its samples.
        batch: samples of a step.
        proximal: pull towards the weights that it was sent (FedProx's mu).
    """

    epochs: int
    batch: int
    proximal: float


class PhaseTracer(Protocol):
    """Trace that is told when a phase of computing begins."""

    @property
    def meter(self) -> ComputeMeter | None:
        """Meter of the CPU time of steps; None if it is not measured."""

    def enter(self, phase: Phase, *, work: int = 0) -> int:
        """Begin a phase, which works on a number of samples."""


class NoTracer:
    """Trace of nothing."""

    meter: ComputeMeter | None = None

    def enter(self, phase: Phase, *, work: int = 0) -> int:  # noqa: ARG002
        """Do nothing."""
        return 0


@dataclass(frozen=True)
class LocalAnswer:
    """Answer of a client to a round.

    Attributes:
        vector: change of the weights, scaled as gradients of a server's workers are, then the
            buffers, shape [parameters + buffers], in the host's memory.
        loss: mean loss of the samples before the steps in which they were; NaN without samples.
        utility: statistical utility of the samples (see `compute_statistical_utility`).
    """

    vector: torch.Tensor
    loss: float
    utility: float


class LocalTrainer:
    """Training of clients' rounds on one model.

    Args:
        local: settings of a round.
        model: model in the state that the client was sent, before each round.
        optimizer: optimizer of the model.
        seed: seed of the training.
        tracer: trace of the phases.
    """

    def __init__(
        self,
        local: LocalTraining,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        seed: int,
        tracer: PhaseTracer,
    ) -> None:
        self._local, self._model, self._optimizer = local, model, optimizer
        self._seed, self._tracer = seed, tracer
        self._state = FlatState(model)
        self._device = next(model.parameters()).device
        self._clock = device_clock(self._device)
        self._fewest = fewest_samples(model)

    def train(self, step: int, rank: int, batch: Batch, share: Share) -> LocalAnswer:
        """Train in a round.

        Args:
            step: number of the round.
            rank: number of the client.
            batch: its samples.
            share: which they are.
        """
        begun = self._state.read()
        # Momentum is of the rounds of this client, whose last one may have been long ago.
        self._optimizer.state.clear()
        counted = len(share.indices)
        loss, squares = self._take_steps(step, rank, batch, counted, begun)
        vector = self._state.read()
        count = self._state.parameters
        # The server divides by the samples of all answers, as it does with gradients.
        vector[:count] = (begun[:count] - vector[:count]) * (counted * share.loss_scale)
        return LocalAnswer(vector.cpu(), loss, math.sqrt(counted * squares) if counted else 0.0)

    def answer_without_training(self) -> LocalAnswer:
        """Return the answer of a free-rider: no change, as if that were a result of training."""
        vector = self._state.read()
        vector[: self._state.parameters] = 0
        return LocalAnswer(vector.cpu(), math.nan, 0.0)

    def _take_steps(
        self, step: int, rank: int, batch: Batch, counted: int, begun: torch.Tensor
    ) -> tuple[float, float]:
        """Take the steps of all epochs.

        Returns:
            Mean loss of the first epoch, and the sum of its squared losses; each sample's loss is
            that of the model before the step in which the sample is.
        """
        if not counted:
            return math.nan, 0.0
        generator = torch.Generator().manual_seed(
            (self._seed * 1_000_003 + rank) * 1_000_003 + step
        )
        # Too few samples for the model are padded with copies, whose mean loss is the same.
        rows = max(counted, min(self._fewest, len(batch.labels)))
        sizes = list_local_steps(rows, self._local.batch, self._fewest)
        losses: list[torch.Tensor] = []
        for epoch in range(self._local.epochs):
            order = torch.randperm(rows, generator=generator)
            for places in torch.split(order, [*sizes]):
                of_samples = self._learn(batch, places.to(self._device), begun)
                if epoch == 0:
                    losses.append(of_samples)
        all_losses = torch.cat(losses)[:counted]
        return all_losses.mean().item(), all_losses.double().square().sum().item()

    def _learn(self, batch: Batch, places: torch.Tensor, begun: torch.Tensor) -> torch.Tensor:
        """Take one step of the client's optimizer; return the loss of each sample, shape [n]."""
        tracer = self._tracer
        tracer.enter(Phase.FORWARD, work=len(places))
        inputs, labels = batch.inputs[places], batch.labels[places]
        losses = cross_entropy(self._model(inputs), labels, reduction="none")
        self._clock.synchronize()
        tracer.enter(Phase.BACKWARD, work=len(places))
        self._optimizer.zero_grad()
        losses.mean().backward()  # type: ignore[no-untyped-call]
        self._clock.synchronize()
        tracer.enter(Phase.OPTIMIZER)
        if self._local.proximal:
            self._pull_towards(begun)
        self._optimizer.step()
        self._clock.synchronize()
        tracer.enter(Phase.OTHER)
        if tracer.meter is not None:
            tracer.meter.finish(len(places))
        return losses.detach()

    def _pull_towards(self, begun: torch.Tensor) -> None:
        """Add the gradient of mu/2 |w - begun|^2."""
        offset = 0
        for parameter in self._model.parameters():
            was = begun[offset : offset + parameter.numel()].view_as(parameter)
            if parameter.grad is not None:
                parameter.grad += self._local.proximal * (parameter.detach() - was)
            offset += parameter.numel()
