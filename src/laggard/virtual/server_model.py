"""Model of a federated training in virtual time: trained, updated and evaluated in one process."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

import torch

from laggard.core.rules.server_rule import Push, Update
from laggard.workloads.clients.client_partition import ClientPartition
from laggard.workloads.datasets.dataset import Data
from laggard.workloads.evaluator import Judge, compute_test_loss, follow_clients
from laggard.workloads.models.flat_state import FlatState
from laggard.workloads.models.optimizers import build_optimizer
from laggard.workloads.output.worker_output import WorkerOutputDir
from laggard.workloads.serving.model_keeper import ModelKeeper
from laggard.workloads.serving.update_record import record_update
from laggard.workloads.strategies.federated.local_training import LocalTrainer, NoTracer
from laggard.workloads.strategies.federated.message_utility import (
    from_message_utility,
    to_message_utility,
)
from laggard.workloads.strategies.federated.parameters import FederatedParameters
from laggard.workloads.tracing.batch_loader import fewest_samples, pad_indices
from laggard.workloads.workload import Workload
from laggard.workloads.workload_model import build_workload_model


@dataclass(frozen=True)
class ClientAnswer:
    """Answer of a client to a round.

    Attributes:
        push: its message to the rule of the server, without the time that it took.
        vector: its tensor, shape [parameters + buffers].
        loss: mean loss of its samples.
    """

    push: Push
    vector: torch.Tensor
    loss: float


class ServerModel:
    """Model of the server, and the training of any client from one of its versions.

    Args:
        workload: workload whose strategy is `federated`.
        data: its opened dataset.
        partition: samples of the clients.
        output_dir: folder of the weights and of the accuracies for the clients.
        free_riders: clients that answer without having trained.
    """

    def __init__(
        self,
        workload: Workload,
        data: Data,
        partition: ClientPartition,
        output_dir: WorkerOutputDir,
        free_riders: Container[int] = (),
    ) -> None:
        strategy = workload.strategy
        assert isinstance(strategy, FederatedParameters)
        self._data, self._partition, self._free_riders = data, partition, free_riders
        self._clip = strategy.clip
        kept, self._trained, judged = (build_workload_model(workload, data) for _ in range(3))
        self.keeper = ModelKeeper(
            kept, build_optimizer(strategy.server_optimizer, kept), partition.world_size
        )
        self._state = FlatState(self._trained)
        self._trainer = LocalTrainer(
            strategy.plan_local_training(),
            self._trained,
            build_optimizer(workload.optimizer, self._trained),
            workload.seed,
            NoTracer(),
        )
        weights = output_dir.weights if workload.save_weights else None
        self._judge = follow_clients(Judge(judged, data.test, weights), partition, data, output_dir)

    @property
    def message_bytes(self) -> int:
        """Bytes of the model in a message."""
        return self._state.bytes

    def train(self, rank: int, step: int, model: torch.Tensor) -> ClientAnswer:
        """Train a client in a round.

        Args:
            rank: number of the client.
            step: number of the round.
            model: state of the model that it was sent, shape [parameters + buffers].
        """
        share = self._partition.share(step, rank)
        self._state.write(model)
        if rank in self._free_riders:
            answer = self._trainer.answer_without_training()
        else:
            padded = pad_indices(share.indices, fewest_samples(self._trained))
            batch = self._data.train.prepare(self._data.train.fetch(padded))
            self._trained.train()
            answer = self._trainer.train(step, rank, batch, share)
        # What a message would carry, since a choice may depend on the last digit.
        utility = from_message_utility(to_message_utility(answer.utility))
        if not bool(torch.isfinite(answer.vector).all()):
            utility = float("nan")
        push = Push(rank, step, len(share.indices), share.batch_size, utility=utility)
        if self._clip is not None:
            push = replace(push, clipped=self.keeper.clip(push, answer.vector, self._clip))
        return ClientAnswer(push, answer.vector, answer.loss)

    def compute_loss(self, pushes: Sequence[Push], update: Update) -> float:
        """Return the mean loss on the test samples, of the model with these answers of a round."""
        recorded = record_update(self.keeper, update, self._partition.world_size)
        return compute_test_loss(self._judge.model, self._judge.test, recorded.preview(pushes))

    def evaluate(self) -> float:
        """Return the accuracy on the test samples, and record that for the clients."""
        return self._judge.judge_vector(self.keeper.read())
