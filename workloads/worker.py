"""Process of one rank; the runner starts `main` in the rank's host."""

from __future__ import annotations

import json
import logging
import os
import time
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch

from laggard.core.emulated_drive import Drive
from laggard.core.linux import minimize_timer_slack
from laggard.core.process.inherited_state import reset_inherited_state
from laggard.core.work_counter import WorkCounter
from laggard.workloads.asynchronous_loop import AsyncTrainingLoop
from laggard.workloads.batch_sharing import create_batch_sharing, find_balancing
from laggard.workloads.coordination.progress_board import ProgressBoard
from laggard.workloads.coordination.progress_reporter import ProgressReporter
from laggard.workloads.coordination.start_barrier import START_BARRIER, StartBarrier
from laggard.workloads.datasets import open_data
from laggard.workloads.datasets.dataset import Batch, Data
from laggard.workloads.datasets.partition import Indices, Partition
from laggard.workloads.devices import CPU, collective_environment, open_gpu
from laggard.workloads.migration.sample_mover import MigratedSplit
from laggard.workloads.models.model_state import load_checkpoint
from laggard.workloads.models.optimizers import build_optimizer
from laggard.workloads.output.decisions import note_decision
from laggard.workloads.output.worker_output import WorkerOutputDir, write_whole
from laggard.workloads.plan import WorkerPlan
from laggard.workloads.process_group import agree_on_model, open_process_group
from laggard.workloads.strategies.background.background_exchange import BackgroundExchange
from laggard.workloads.strategies.base.group_connections import connect_to_all
from laggard.workloads.strategies.base.peer_connections import PeerConnections
from laggard.workloads.strategies.base.step_encoder import create_step_encoder
from laggard.workloads.strategies.base.strategy import (
    AsyncStrategy,
    DividedModel,
    DividesModel,
    PeerStrategy,
    ServerStrategy,
    Strategy,
    TrainingContext,
)
from laggard.workloads.strategies.server.push_pull import ServerMessageKind
from laggard.workloads.streams.plan_partition import plan_partition
from laggard.workloads.streams.rehearsal import open_rehearsal
from laggard.workloads.streams.sample_arrivals import SampleArrivals, find_arrival_rule
from laggard.workloads.tracing.batch_loader import BatchLoader, fewest_samples, pad_indices
from laggard.workloads.tracing.compute_meter import ComputeMeter
from laggard.workloads.tracing.full_speed import (
    FullSpeed,
    alone_on_core,
    fit_step_cost,
    learner_on_a_copy,
    measure_steps,
    read_timed,
    write_timed,
)
from laggard.workloads.tracing.heartbeat import count_begun_steps
from laggard.workloads.tracing.recorder import Recorder
from laggard.workloads.tracing.traffic import write_traffic
from laggard.workloads.training_loop import Loop
from laggard.workloads.transport.endpoint import Endpoint
from laggard.workloads.transport.frames import Message
from laggard.workloads.transport.plan import EndpointPlan
from laggard.workloads.workload_model import build_model_shapes, build_workload_model

LOGGER = logging.getLogger(__name__)
GO_POLL_S = 0.01
RANK_POLL_S = 0.0025
"""Additional interval per rank between two looks for the start signal. Control groups give the
hosts precedence over the process that gives the signal, so all looks together must stay cheap."""


def main(argument: str) -> None:
    """Train as one rank.

    Args:
        argument: `WorkerPlan` as JSON.

    Raises:
        InputError: the model or the dataset is invalid.
        DeploymentError: the rank's GPU cannot be used.
        RuntimeError: a peer died, or a collective timed out; torch's message says which.
    """
    plan = WorkerPlan.model_validate_json(argument)
    _configure_process(plan)
    output_dir = WorkerOutputDir(plan.output_path)
    if plan.device != CPU:
        write_whole(output_dir.device_class(plan.rank), open_gpu(plan).encode())
    data = open_data(plan.workload, plan.output_path)
    start_barrier = StartBarrier(output_dir.start_barrier, plan.world_size, relayed=plan.relayed)
    with (
        _open_drive(plan) as drive,
        Recorder(
            output_dir, plan.rank, plan.world_size, plan.life, plan.workload.strategy.warm_up_steps
        ) as recorder,
    ):
        partition = plan_partition(plan.workload, data, plan.world_size, plan.tiers)
        resources = WorkerResources(plan, data, recorder, start_barrier, drive, partition)
        if plan.endpoint is None:
            with open_process_group(plan):
                _train_in_lockstep(resources, output_dir)
                write_traffic(output_dir, plan.rank, None)
        elif plan.workload.strategy.uses_server:
            _train_with_server(resources, output_dir, plan.endpoint)
        else:
            _train_among_peers(resources, output_dir, plan.endpoint)


@dataclass(frozen=True)
class WorkerResources:
    """Resources that a rank has opened before it connects to the others."""

    plan: WorkerPlan
    data: Data
    recorder: Recorder
    start_barrier: StartBarrier
    drive: Drive | None
    partition: Partition

    def context(
        self, endpoint: Endpoint | None = None, peers: PeerConnections | None = None
    ) -> TrainingContext:
        """Build the model and optimizer, and return everything that a strategy trains with."""
        plan, data, workload = self.plan, self.data, self.plan.workload
        device = torch.device(plan.device)
        divided = self._divide() if workload.strategy.divides_model else None
        model = (
            build_workload_model(workload, data).to(device)
            if divided is None
            else build_model_shapes(workload, data)
        )
        optimizer, first_step = build_optimizer(workload.optimizer, model), 0
        if workload.resume is not None:
            first_step = load_checkpoint(
                Path(workload.resume), model, optimizer, workload.stop.steps
            )
        # Every rank has the same model, from the seed or a file. Then it draws random
        # numbers of its own.
        torch.manual_seed(workload.seed * 1_000_003 + plan.rank)
        return TrainingContext(
            rank=plan.rank,
            tiers=plan.tiers,
            model=model,
            optimizer=optimizer,
            recorder=self.recorder,
            device=device,
            backend=plan.backend,
            last_step=None if workload.stop.steps is None else workload.stop.steps - 1,
            endpoint=endpoint,
            peers=peers,
            dilation=plan.dilation,
            seed=workload.seed,
            objective=workload.objective,
            record_decision=self.record_decision,
            first_step=first_step,
            task_ends=self.partition.task_ends,
            is_free_rider=plan.is_free_rider,
            hosts=plan.hosts_by_rank,
            divided=divided,
        )

    def _divide(self) -> DividedModel:
        """Return what the rank needs to have a part of the model only."""
        return DividedModel(
            self.fetch(np.arange(2)).inputs,
            WorkerOutputDir(self.plan.output_path).initial_model,
            partial(build_optimizer, self.plan.workload.optimizer),
        )

    def record_decision(self, step: int, sentence: str) -> None:
        """Record a decision of the strategy, once for all ranks."""
        note_decision(WorkerOutputDir(self.plan.output_path), step, sentence)

    @property
    def counts(self) -> bool:
        """Return whether the rank counts its work: it is limited to a share and runs on the CPU."""
        return self.plan.shared and self.plan.device == CPU

    def fetch(self, indices: Indices) -> Batch:
        """Return a batch of training samples at full speed, and without a trace of it."""
        train = self.data.train
        return train.prepare(train.fetch(indices))

    def create_batch_loader(self, context: TrainingContext) -> BatchLoader:
        """Create the loader of the rank's samples; all ranks do so before they train."""
        workload, train = self.plan.workload, self.data.train
        if workload.held_samples is not None:
            train = MigratedSplit(train)
        return BatchLoader(
            train,
            self.recorder,
            context.device,
            fewest_samples(context.model),
            self.drive,
            workload.samples,
            open_rehearsal(workload, self.partition, train, self.plan.rank, self.recorder),
            self._create_arrivals(),
        )

    def _create_arrivals(self) -> SampleArrivals | None:
        plan, barrier = self.plan, self.start_barrier
        rule = find_arrival_rule(plan.workload.stream, plan.tiers[plan.rank])
        if rule is None:
            return None
        return SampleArrivals(
            rule, self.partition, plan.rank, plan.dilation, lambda: barrier.paused_ns
        )


def _train_in_lockstep(
    resources: WorkerResources, output_dir: WorkerOutputDir, peers: PeerConnections | None = None
) -> None:
    """Train as one rank in lockstep with all others."""
    plan, start_barrier = resources.plan, resources.start_barrier
    context = resources.context(peers=peers)
    if peers is None and plan.connects_lazily and context.divided is None:
        context = agree_on_model(plan, context, output_dir)
        if find_balancing(plan) is not None or plan.workload.held_samples is not None:
            connect_to_all(range(plan.world_size), plan.rank)
    strategy = cast("Strategy", plan.workload.strategy.create_worker(context))
    loop = Loop(
        plan,
        resources.create_batch_loader(context),
        resources.partition,
        strategy,
        resources.recorder,
        start_barrier,
        resources.drive,
        first_step=context.first_step,
    )
    zero_ns = _begin_with_all(resources, context, output_dir, strategy)
    if plan.rank == 0:
        # Every rank has read it: all have passed the start barrier.
        output_dir.initial_model.unlink(missing_ok=True)
    loop.sharing = create_batch_sharing(
        plan, loop.batch_loader, resources.partition, strategy, context
    )
    loop.batch_loader.begin(zero_ns)
    ending = loop.run(zero_ns)
    if plan.rank == 0:
        loop.write_done(zero_ns, ending)
    LOGGER.info("stopped by %s after step %d", ending.stopped_by, ending.last_step)


def _train_with_server(
    resources: WorkerResources, output_dir: WorkerOutputDir, endpoint_plan: EndpointPlan
) -> None:
    """Train as a worker of a parameter server."""
    plan = resources.plan
    with Endpoint(endpoint_plan) as endpoint:
        endpoint.connect(plan.world_size)
        context = resources.context(endpoint)
        strategy = cast("ServerStrategy", plan.workload.strategy.create_worker(context))
        loop = AsyncTrainingLoop(
            resources.create_batch_loader(context),
            lambda step: resources.partition.assign(step, plan.rank, strategy.next_batch_range),
            strategy,
            resources.recorder,
        )
        asked_ns = None
        if plan.late:
            begun_ns = _join_late(resources, context, strategy, output_dir)
        else:
            if resources.counts:
                strategy.warm_up(resources.partition.share(0, plan.rank), resources.fetch)
            endpoint.deliver(plan.world_size, Message(ServerMessageKind.HELLO))
            begun_ns = _begin_with_all(resources, context, output_dir)
            if plan.workload.strategy.begins_with_server:
                strategy.join()
                asked_ns = time.monotonic_ns()
        loop.batch_loader.begin(resources.start_barrier.announced[1].open_ns)
        taken = loop.run(begun_ns, asked_ns)
        write_traffic(output_dir, plan.rank, endpoint)
        LOGGER.info("the server ended training after %d steps of this rank", taken)


def _begin_with_all(
    resources: WorkerResources,
    context: TrainingContext,
    output_dir: WorkerOutputDir,
    strategy: object = None,
) -> int:
    """Measure a limited rank's full speed, then begin with all; return the first step's time."""
    own = _measure_full_speed(resources, context, output_dir, strategy)
    zero_ns = _start_together(resources.plan, output_dir, resources.start_barrier)
    _count_work(resources, output_dir, own)
    return zero_ns


def _join_late(
    resources: WorkerResources,
    context: TrainingContext,
    strategy: AsyncStrategy,
    output_dir: WorkerOutputDir,
) -> int:
    """Join a training that has begun; return the time at which this rank's training begins.

    The ranks that were present at the start measured their steps at full speed before they were
    limited. A rank that joins is limited already, so it measures only if no other rank did.
    """
    plan = resources.plan
    # The file exists as soon as a rank locks it, so it may still be empty.
    if not (output_dir.full_speed.exists() and read_timed(output_dir.full_speed)):
        _measure_full_speed(resources, context, output_dir)
    strategy.join()
    _count_work(resources, output_dir)
    if resources.recorder.meter is not None:
        # The runner has marked the counter as computing while this process started.
        resources.recorder.meter.rest()
    write_whole(output_dir.ready(plan.rank, plan.life), b"")
    LOGGER.info(
        "rank %d of %d on %s has joined before its step %s",
        plan.rank,
        plan.world_size,
        plan.host,
        strategy.next_step,
    )
    return time.monotonic_ns()


def _train_among_peers(
    resources: WorkerResources, output_dir: WorkerOutputDir, endpoint_plan: EndpointPlan
) -> None:
    """Train as one rank that exchanges messages with other ranks, without a server."""
    plan, own = resources.plan, resources.plan.workload.strategy.sync_mode == "asynchronous"
    progress_board = ProgressBoard(output_dir.progress_board, plan.world_size)
    with (
        Endpoint(endpoint_plan, listens=True) as endpoint,
        closing(
            PeerConnections(
                endpoint,
                plan.world_size,
                resources.recorder,
                progress_board,
                supports_loss=own,
                absent=plan.absent,
                session=plan.session,
                first_step=count_begun_steps(output_dir.heartbeat, plan.world_size, plan.rank),
            )
        ) as peers,
    ):
        if not plan.late:
            peers.connect_all()
        if own:
            _train_under_coordinator(resources, output_dir, peers, progress_board)
        else:
            _train_in_lockstep(resources, output_dir, peers)
        peers.wait_before_exit(partial(write_traffic, output_dir, plan.rank, endpoint))


def _train_under_coordinator(
    resources: WorkerResources,
    output_dir: WorkerOutputDir,
    peers: PeerConnections,
    progress_board: ProgressBoard,
) -> None:
    """Train as an asynchronous rank that reports to the training coordinator."""
    plan, context = resources.plan, resources.context(peers=peers)
    strategy = cast("PeerStrategy", plan.workload.strategy.create_worker(context))
    progress_reporter = ProgressReporter(
        plan.rank, progress_board, output_dir, context.model, lambda: strategy.weight
    )
    if isinstance(strategy, BackgroundExchange):
        # The background thread gives snapshots at once, not only between steps.
        strategy.progress_reporter, progress_reporter.between_steps = progress_reporter, False
    share_of = partial(resources.partition.share, rank=plan.rank)
    loop = AsyncTrainingLoop(
        resources.create_batch_loader(context),
        share_of,
        strategy,
        resources.recorder,
        progress_reporter,
    )
    begun_ns = (
        _join_late(resources, context, strategy, output_dir)
        if plan.late
        else _begin_with_all(resources, context, output_dir)
    )
    taken = loop.run(begun_ns)
    LOGGER.info("the coordinator ended training after %d steps of this rank", taken)


def _configure_process(plan: WorkerPlan) -> None:
    """Use one thread, the default reaction to signals, and the emulated network."""
    reset_inherited_state()
    os.environ.update(collective_environment(plan))
    torch.set_num_threads(1)


def _open_drive(plan: WorkerPlan) -> Drive | nullcontext[None]:
    """Open the host's drive, if it is limited."""
    if plan.drive is None:
        return nullcontext()
    minimize_timer_slack()
    return Drive(Path(plan.drive))


def _measure_full_speed(
    resources: WorkerResources,
    context: TrainingContext,
    output_dir: WorkerOutputDir,
    strategy: object = None,
) -> FullSpeed | None:
    """Measure the rank's steps and create its work counter, before the rank is limited.

    Returns:
        The rank's own full speed, if its steps are not like those of others.
    """
    if not resources.counts:
        return None
    WorkCounter(output_dir.work(resources.plan.rank, resources.plan.life)).close()
    if isinstance(strategy, DividesModel):
        with alone_on_core(output_dir.full_speed):
            return FullSpeed(strategy.measure_step_ns(), 0.0)
    plan, fewest = resources.plan, fewest_samples(context.model)
    learn = learner_on_a_copy(
        context.model,
        partial(build_optimizer, plan.workload.optimizer),
        create_step_encoder(plan.workload.strategy),
        reads=plan.workload.strategy.background_exchange,
    )
    indices = pad_indices(resources.partition.list_usual_batch(plan.rank), fewest)
    # Two ranks on one core at a time would slow each other down.
    with alone_on_core(output_dir.full_speed):
        write_timed(
            output_dir.full_speed,
            plan.rank,
            measure_steps(resources.data.train, indices, fewest, learn),
        )
    return None


def _count_work(
    resources: WorkerResources, output_dir: WorkerOutputDir, own: FullSpeed | None = None
) -> None:
    """Count the rank's work from now on, relative to the full speed of this machine's ranks."""
    if resources.counts:
        counter = WorkCounter(output_dir.work(resources.plan.rank, resources.plan.life))
        full_speed = own or fit_step_cost(read_timed(output_dir.full_speed))
        resources.recorder.meter = ComputeMeter(counter, full_speed)


def _start_together(
    plan: WorkerPlan, output_dir: WorkerOutputDir, start_barrier: StartBarrier
) -> int:
    """Report that this rank is ready and wait for all; return the first step's time."""
    write_whole(output_dir.ready(plan.rank), b"")
    LOGGER.info("rank %d of %d on %s is ready", plan.rank, plan.world_size, plan.host)
    while not output_dir.start_signal.exists():
        time.sleep(GO_POLL_S + RANK_POLL_S * plan.world_size)
    start_barrier.arrive(plan.rank, START_BARRIER, time.monotonic_ns())
    if plan.opens:
        while start_barrier.last_arrival_ns(START_BARRIER, plan.absent) is None:
            time.sleep(GO_POLL_S)
        zero_ns = start_barrier.open(START_BARRIER)
        write_whole(output_dir.zero, json.dumps({"zero_ns": zero_ns}).encode())
    return start_barrier.wait(START_BARRIER).open_ns
