"""Process that prepares the dataset and evaluates snapshots, outside hosts, shares and clock.

Ranks in lockstep wait during an evaluation, so it takes no core from a rank that computes. Ranks
with a server and asynchronous ranks do not wait. The evaluator then runs at the lowest priority
(only processes that keep cores awake are lower) and evaluates as often as it can.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from laggard.core.process.inherited_state import reset_inherited_state
from laggard.workloads.clients.client_partition import ClientPartition
from laggard.workloads.clients.round_record import ClientJudge
from laggard.workloads.coordination.progress_reporter import read_parts
from laggard.workloads.coordination.start_barrier import (
    POLL_S,
    EvaluationVerdict,
    Reason,
    StartBarrier,
    evaluation_barrier,
)
from laggard.workloads.coordination.stopping import accuracy_reached
from laggard.workloads.datasets import open_data, prepare_data
from laggard.workloads.datasets.dataset import Batch, Data, Indices, LabeledSplit, Split
from laggard.workloads.models.flat_state import FlatState
from laggard.workloads.models.initial_model import write_model
from laggard.workloads.models.model_state import load_state, save_weights
from laggard.workloads.output.worker_output import WorkerOutputDir, append_line, read_lines
from laggard.workloads.plan import EvaluatorPlan
from laggard.workloads.streams.plan_partition import plan_partition
from laggard.workloads.streams.stream_partition import StreamPartition
from laggard.workloads.streams.task_accuracies import TaskAccuracies
from laggard.workloads.training_coordinator import TrainingCoordinator
from laggard.workloads.workload_model import build_workload_model

LOGGER = logging.getLogger(__name__)
EVALUATION_BATCH = 512
REQUEST_POLL_S = 0.05


def main(argument: str) -> None:
    """Prepare the dataset and serve evaluations until the last one.

    Args:
        argument: `EvaluatorPlan` as JSON.

    Raises:
        InputError: the model or the dataset is invalid.
    """
    plan = EvaluatorPlan.model_validate_json(argument)
    reset_inherited_state()
    torch.set_num_threads(1)
    prepare_data(plan.workload, plan.output_path)
    data = open_data(plan.workload, plan.output_path)
    workload = plan.workload
    model = build_workload_model(workload, data)
    strategy = workload.strategy
    if strategy.divides_model:
        write_model(WorkerOutputDir(plan.output_path).initial_model, model)
    if strategy.uses_server or strategy.sync_mode == "asynchronous":
        # Training continues during evaluations here and must have priority.
        os.nice(19)
    weights = WorkerOutputDir(plan.output_path).weights if workload.save_weights else None
    judge = Judge(model, data.test, weights)
    if workload.stream is not None:
        judge = _follow_tasks(judge, plan, data)
    if workload.local_batch is not None:
        partition = plan_partition(workload, data, plan.world_size, plan.tiers)
        assert isinstance(partition, ClientPartition)
        judge = follow_clients(judge, partition, data, WorkerOutputDir(plan.output_path))
    if strategy.uses_server:
        _serve_parameter_server(plan, judge)
    elif strategy.sync_mode == "asynchronous":
        _create_coordinator(plan, data, judge).run()
    else:
        _serve_evaluations(plan, judge)


@dataclass(frozen=True)
class Judge:
    """Evaluation of models on the test samples.

    Attributes:
        model: model that gets the weights to evaluate.
        test: test samples.
        weights: file for the weights of the last evaluation; None if they are not saved.
        tasks: accuracies on the tasks of a stream; None without a stream.
        clients: accuracies for the clients of a federated training; None for another one.
    """

    model: nn.Module
    test: Split
    weights: Path | None
    tasks: TaskAccuracies | None = None
    clients: ClientJudge | None = None

    def judge_vector(self, whole: torch.Tensor) -> float:
        """Evaluate a model given as one vector."""
        FlatState(self.model).write(whole)
        return self._judge()

    def judge_snapshot(self, snapshot: Path) -> float:
        """Evaluate a model given as a file, and remove the file."""
        self.model.load_state_dict(load_state(snapshot))
        snapshot.unlink()
        return self._judge()

    def judge_blocks(self, output_dir: WorkerOutputDir, number: int) -> float:
        """Evaluate a model given as a file of each block, and remove the files."""
        for block in count():
            part = output_dir.part(number, block)
            if not part.exists():
                break
            self.model.load_state_dict(load_state(part), strict=False)
            part.unlink()
        return self._judge()

    def judge_tier(self, tier: str, whole: torch.Tensor) -> None:
        """Record the accuracies of a tier's own model, given as one vector, on the tasks."""
        assert self.tasks is not None
        FlatState(self.model).write(whole)
        self.tasks.write(*count_correct(self.model, self.test), tier)

    def _judge(self) -> float:
        # Before anyone knows the result, since the last one ends the run.
        if self.weights is not None:
            save_weights(self.weights, self.model)
        correct, number = count_correct(self.model, self.test)
        if self.tasks is not None:
            self.tasks.write(correct, number)
        if self.clients is not None:
            self.clients.write(correct, number)
        return int(correct.sum()) / len(self.test)


def _follow_tasks(judge: Judge, plan: EvaluatorPlan, data: Data) -> Judge:
    """Return a judge that also records the accuracies on the tasks, those at the start first."""
    partition = plan_partition(plan.workload, data, plan.world_size)
    assert isinstance(partition, StreamPartition)
    tasks = TaskAccuracies(WorkerOutputDir(plan.output_path), partition)
    tasks.write_tasks()
    tasks.write(*count_correct(judge.model, data.test))
    return replace(judge, tasks=tasks)


def follow_clients(
    judge: Judge, partition: ClientPartition, data: Data, output_dir: WorkerOutputDir
) -> Judge:
    """Return a judge that also records the accuracies for clients, if their labels are known."""
    if not isinstance(data.train, LabeledSplit):
        return judge
    clients = ClientJudge.create(output_dir, partition, data.train.labels, data.classes)
    return replace(judge, clients=clients)


def _create_coordinator(plan: EvaluatorPlan, data: Data, judge: Judge) -> TrainingCoordinator:
    partition = plan_partition(plan.workload, data, plan.world_size)
    dtype = next(judge.model.parameters()).dtype
    return TrainingCoordinator(plan, partition, judge.judge_vector, dtype)


def _serve_evaluations(plan: EvaluatorPlan, judge: Judge) -> None:
    """Evaluate at every evaluation barrier of ranks in lockstep, until training ends."""
    output_dir = WorkerOutputDir(plan.output_path)
    start_barrier = StartBarrier(output_dir.start_barrier, plan.world_size, relayed=plan.relayed)
    dtype = next(judge.model.parameters()).dtype
    accuracies: list[float] = []
    is_over = False
    while not is_over:
        number = len(accuracies)
        barrier = evaluation_barrier(number)
        last_arrival_ns = _wait_for_all(start_barrier, barrier)
        step, is_last = start_barrier.requested_evaluation
        if output_dir.snapshot(number).exists():
            accuracies.append(judge.judge_snapshot(output_dir.snapshot(number)))
        elif plan.workload.strategy.divides_model:
            accuracies.append(judge.judge_blocks(output_dir, number))
        else:
            # The ranks had different models, each of which wrote its part. Their mean is
            # evaluated, and under a stream the mean of each tier.
            if judge.tasks is not None:
                for tier, ranks in _list_ranks(plan.tiers).items():
                    mean = read_parts(output_dir, number, ranks, dtype, remove=False)
                    judge.judge_tier(tier, mean)
            parts = read_parts(output_dir, number, range(plan.world_size), dtype)
            accuracies.append(judge.judge_vector(parts))
        verdict = (
            EvaluationVerdict.STOP
            if accuracy_reached(accuracies, plan.workload.stop)
            else EvaluationVerdict.GO_ON
        )
        found = {"step": step, "accuracy": accuracies[-1]}
        append_line(output_dir.progress, {"time_ns": last_arrival_ns, **found})
        append_line(
            output_dir.evaluations,
            {"evaluation": number, "last_arrival_ns": last_arrival_ns, **found},
        )
        start_barrier.open(barrier, verdict, paused_since_ns=last_arrival_ns)
        LOGGER.info("after step %d: accuracy %.4f", step, accuracies[-1])
        is_over = is_last or verdict is EvaluationVerdict.STOP


def _serve_parameter_server(plan: EvaluatorPlan, judge: Judge) -> None:
    """Evaluate the server's snapshots in order; request a stop when the accuracy is reached."""
    output_dir = WorkerOutputDir(plan.output_path)
    start_barrier = StartBarrier(output_dir.start_barrier, plan.world_size)
    accuracies: list[float] = []
    while True:
        requests = read_lines(output_dir.evaluation_requests)
        if len(requests) == len(accuracies):
            time.sleep(REQUEST_POLL_S)
            continue
        number, line = len(accuracies), requests[len(accuracies)]
        accuracies.append(judge.judge_snapshot(output_dir.snapshot(number)))
        reached = accuracy_reached(accuracies, plan.workload.stop)
        found = {"step": line["step"], "accuracy": accuracies[-1]}
        append_line(output_dir.progress, {"time_ns": line["time_ns"], **found})
        where = {"rank": line["rank"], "samples": line["samples"], "time_ns": line["time_ns"]}
        append_line(
            output_dir.evaluations,
            {"evaluation": number, "reached": int(reached), **where, **found},
        )
        if reached and not start_barrier.is_stop_requested:
            start_barrier.request_stop(Reason.ACCURACY)
        LOGGER.info("after %s samples: accuracy %.4f", line["samples"], accuracies[-1])
        if line["final"]:
            return


def _list_ranks(tiers: Sequence[str]) -> dict[str, list[int]]:
    """Return the ranks of each tier; none if all are in one, whose model is that of all."""
    ranks: dict[str, list[int]] = {}
    for rank, tier in enumerate(tiers):
        ranks.setdefault(tier, []).append(rank)
    return ranks if len(ranks) > 1 else {}


def _wait_for_all(start_barrier: StartBarrier, barrier: int) -> int:
    while (last_arrival_ns := start_barrier.last_arrival_ns(barrier)) is None:
        time.sleep(POLL_S)
    return last_arrival_ns


def evaluate(model: nn.Module, test: Split) -> float:
    """Return the fraction of the test samples that a model classifies correctly, 0 to 1."""
    return int(count_correct(model, test)[0].sum()) / len(test)


def count_correct(model: nn.Module, test: Split) -> tuple[Indices, Indices]:
    """Return how many test samples of each class a model classifies correctly, and of how many.

    Both arrays have as many classes, [C], as the samples need.
    """
    model.eval()
    hits, labels = [], []
    with torch.no_grad():
        for batch in split_batches(test):
            hits.append((model(batch.inputs).argmax(dim=1) == batch.labels).numpy())
            labels.append(batch.labels.numpy())
    known = np.concatenate(labels)
    number = np.bincount(known)
    return np.bincount(known[np.concatenate(hits)], minlength=len(number)), number


def compute_test_loss(model: nn.Module, test: Split, state: torch.Tensor) -> float:
    """Return the mean loss of a state of a model on the test samples.

    Args:
        model: the model, whose state is replaced.
        test: test samples.
        state: parameters and buffers, shape [parameters + buffers].
    """
    FlatState(model).write(state)
    model.eval()
    with torch.no_grad():
        losses = [
            cross_entropy(model(batch.inputs), batch.labels, reduction="sum").item()
            for batch in split_batches(test)
        ]
    return sum(losses) / len(test)


def split_batches(split: Split) -> Iterator[Batch]:
    """Yield all samples, in batches."""
    for start in range(0, len(split), EVALUATION_BATCH):
        indices = np.arange(start, min(start + EVALUATION_BATCH, len(split)), dtype=np.int64)
        yield split.prepare(split.fetch(indices))
