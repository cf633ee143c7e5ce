"""Client's side of `federated`: train on its own samples, answer with the change of the model."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch.nn.functional import cross_entropy

from laggard.core.span_schema import Phase
from laggard.workloads.datasets.dataset import Batch
from laggard.workloads.datasets.partition import Share
from laggard.workloads.strategies.base.parameters import CompressibleParameters
from laggard.workloads.strategies.base.strategy import TrainingContext
from laggard.workloads.strategies.federated.message_utility import to_message_utility
from laggard.workloads.strategies.server.push_pull import PushPullWorker, ServerMessageKind
from laggard.workloads.tracing.device_clock import device_clock
from laggard.workloads.tracing.step_result import StepResult
from laggard.workloads.transport.frames import Message


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


class FederatedClient(PushPullWorker):
    """Client of a federated training; each of its steps is a round that it was asked to.

    Args:
        parameters: parameters of the strategy.
        context: training context of the rank.
        local: settings of the client's round.
    """

    def __init__(
        self, parameters: CompressibleParameters, context: TrainingContext, local: LocalTraining
    ) -> None:
        super().__init__(parameters, context)
        self._local = local
        self._clock = device_clock(context.device)

    def step(self, step: int, batch: Batch, share: Share) -> StepResult:
        """Train on the client's samples, and wait until it is asked again (see `AsyncStrategy`)."""
        recorder, server = self._context.recorder, self._context.world_size
        begun = self._state.read()
        # Momentum is of the rounds of this client, whose last one may have been long ago.
        self.optimizer.state.clear()
        counted = len(share.indices)
        loss, squares = self._train(step, batch, counted, begun)
        utility = math.sqrt(counted * squares) if counted else 0.0
        answer = self._state.read()
        count = self._state.parameters
        # The server divides by the samples of all answers, as it does with gradients.
        scale = counted * share.loss_scale
        answer[:count] = (begun[:count] - answer[:count]) * scale
        answer = answer.cpu()
        recorder.enter(Phase.COMM, peer=server, payload_bytes=answer.nbytes)
        values = (step, counted, share.batch_size, 0, to_message_utility(utility))
        self._endpoint.deliver(
            server, Message(ServerMessageKind.PUSH, self._version, values, answer)
        )
        reply = self._receive()
        read, self._version = self._version, reply.version
        self._load_model(reply)
        recorder.enter(Phase.OTHER)
        return replace(self._build_result(loss, read, reply), is_metered=True)

    def _train(
        self, step: int, batch: Batch, counted: int, begun: torch.Tensor
    ) -> tuple[float, float]:
        """Train for the epochs of a round.

        Returns:
            Mean loss of the first epoch, and the sum of its squared losses; each sample's loss is
            that of the model before the step in which the sample is.
        """
        generator = torch.Generator().manual_seed(
            (self._context.seed * 1_000_003 + self._context.rank) * 1_000_003 + step
        )
        losses: list[torch.Tensor] = []
        for epoch in range(self._local.epochs):
            order = torch.randperm(counted, generator=generator)
            for places in torch.split(order, self._local.batch):
                of_samples = self._learn(batch, places.to(self._context.device), begun)
                if epoch == 0:
                    losses.append(of_samples)
        if not losses:
            return math.nan, 0.0
        all_losses = torch.cat(losses)
        return all_losses.mean().item(), all_losses.double().square().sum().item()

    def _learn(self, batch: Batch, places: torch.Tensor, begun: torch.Tensor) -> torch.Tensor:
        """Take one step of the client's optimizer; return the loss of each sample, shape [n]."""
        recorder, model = self._context.recorder, self._context.model
        recorder.enter(Phase.FORWARD, work=len(places))
        losses = cross_entropy(model(batch.inputs[places]), batch.labels[places], reduction="none")
        self._clock.synchronize()
        recorder.enter(Phase.BACKWARD, work=len(places))
        self.optimizer.zero_grad()
        losses.mean().backward()  # type: ignore[no-untyped-call]
        self._clock.synchronize()
        recorder.enter(Phase.OPTIMIZER)
        if self._local.proximal:
            self._pull_towards(begun)
        self.optimizer.step()
        self._clock.synchronize()
        recorder.enter(Phase.OTHER)
        if recorder.meter is not None:
            recorder.meter.finish(len(places))
        return losses.detach()

    def _pull_towards(self, begun: torch.Tensor) -> None:
        """Add the gradient of mu/2 |w - begun|^2."""
        offset = 0
        for parameter in self.model.parameters():
            was = begun[offset : offset + parameter.numel()].view_as(parameter)
            if parameter.grad is not None:
                parameter.grad += self._local.proximal * (parameter.detach() - was)
            offset += parameter.numel()
