"""Client's side of `federated`: train on its own samples, answer with the change of the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from laggard.core.span_schema import Phase
from laggard.workloads.datasets.dataset import Batch
from laggard.workloads.datasets.partition import Indices, Share
from laggard.workloads.strategies.base.parameters import CompressibleParameters
from laggard.workloads.strategies.base.strategy import TrainingContext
from laggard.workloads.strategies.federated.local_training import (
    LocalTrainer,
    LocalTraining,
    NoTracer,
)
from laggard.workloads.strategies.federated.message_utility import to_message_utility
from laggard.workloads.strategies.server.push_pull import PushPullWorker, ServerMessageKind
from laggard.workloads.tracing.batch_loader import fewest_samples, pad_indices
from laggard.workloads.tracing.step_result import StepResult
from laggard.workloads.transport.frames import Message


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
        self._trainer = LocalTrainer(
            local, context.model, context.optimizer, context.seed, context.recorder
        )

    def warm_up(self, share: Share, fetch: Callable[[Indices], Batch]) -> None:
        """Train on few samples, with every size of step of a round (see `ServerStrategy`)."""
        samples, size, context = len(share.indices), self._local.batch, self._context
        few = min(samples, 2 * size + samples % size)
        if not few:
            return
        begun, fewest = self._state.read(), fewest_samples(context.model)
        batch = fetch(pad_indices(share.indices[:few], fewest))
        trainer = LocalTrainer(
            self._local, context.model, context.optimizer, context.seed, NoTracer()
        )
        with torch.random.fork_rng(devices=[]):
            trainer.train(0, context.rank, batch, replace(share, indices=share.indices[:few]))
        context.optimizer.state.clear()
        self._state.write(begun)

    def step(self, step: int, batch: Batch, share: Share) -> StepResult:
        """Train on the client's samples, and wait until it is asked again (see `AsyncStrategy`)."""
        recorder, server = self._context.recorder, self._context.world_size
        answer = (
            self._trainer.answer_without_training()
            if self._context.is_free_rider
            else self._trainer.train(step, self._context.rank, batch, share)
        )
        recorder.enter(Phase.COMM, peer=server, payload_bytes=answer.vector.nbytes)
        utility = to_message_utility(answer.utility)
        values = (step, len(share.indices), share.batch_size, 0, utility)
        self._endpoint.deliver(
            server, Message(ServerMessageKind.PUSH, self._version, values, answer.vector)
        )
        reply = self._receive()
        read, self._version = self._version, reply.version
        self._load_model(reply)
        recorder.enter(Phase.OTHER)
        return replace(self._build_result(answer.loss, read, reply), is_metered=True)
