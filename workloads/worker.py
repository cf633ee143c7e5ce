"""The process of one rank: `main` is what the runner starts in the rank's host."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from laggard.core.emulated_drive import Drive, minimize_timer_slack
from laggard.core.errors import DeploymentError
from laggard.core.work_counter import WorkCounter
from laggard.workloads.account import Account
from laggard.workloads.balancing.balancer import Balancer
from laggard.workloads.balancing.shares import Shares
from laggard.workloads.compress.codec import ErrorFeedbackCodec, create_vector_codec
from laggard.workloads.compute_meter import ComputeMeter
from laggard.workloads.datasets import open_data
from laggard.workloads.datasets.dataset import Data
from laggard.workloads.decisions import note_decision
from laggard.workloads.devices import CPU, collective_environment
from laggard.workloads.full_speed import (
    alone_on_core,
    fit,
    learner_on_a_copy,
    measure,
    read_timed,
    write_timed,
)
from laggard.workloads.gates import START_GATE, Gates
from laggard.workloads.heartbeat import read_heartbeats
from laggard.workloads.intake import Intake, fewest_samples, pad
from laggard.workloads.loop import Ending, Loop
from laggard.workloads.models import build_model
from laggard.workloads.optimizers import build_optimizer
from laggard.workloads.own_pace import OwnPace
from laggard.workloads.partition import Partition, Share
from laggard.workloads.plan import WorkerPlan
from laggard.workloads.spool import Spool, read_lines, write_whole
from laggard.workloads.strategies import (
    create_peer_strategy,
    create_server_strategy,
    create_strategy,
)
from laggard.workloads.strategies.background.background_exchange import BackgroundExchange
from laggard.workloads.strategies.collective.ring_allreduce import RingAllReduce
from laggard.workloads.strategies.parameters import (
    AllReduceParameters,
    BalancedParameters,
    CompressibleParameters,
    Parameters,
)
from laggard.workloads.strategies.peer_connections import PeerConnections
from laggard.workloads.strategies.server.push_pull import ServerMessageKind
from laggard.workloads.strategies.strategy import (
    AsyncStrategy,
    ServerStrategy,
    Strategy,
    TrainingContext,
)
from laggard.workloads.tally import Tally
from laggard.workloads.tracing.recorder import Recorder
from laggard.workloads.tracing.traffic import write_traffic
from laggard.workloads.transport.endpoint import Endpoint
from laggard.workloads.transport.frames import Message
from laggard.workloads.transport.plan import EndpointPlan

LOGGER = logging.getLogger(__name__)
GO_POLL_S = 0.01


def main(argument: str) -> None:
    """Train as one rank.

    Args:
        argument: a `WorkerPlan` as JSON.

    Raises:
        InputError: the model or the dataset is not what it should be.
        DeploymentError: the rank's GPU cannot be used.
        RuntimeError: a peer died, or a collective timed out; torch's message says which.
    """
    plan = WorkerPlan.model_validate_json(argument)
    _configure_process(plan)
    spool = Spool(plan.spool_path)
    _take_device(plan, spool)
    data = open_data(plan.workload, plan.spool_path)
    gates = Gates(spool.gates, plan.world_size, relayed=plan.relayed)
    with _drive(plan) as drive, Recorder(spool, plan.rank, plan.world_size, plan.life) as recorder:
        bench = _Bench(plan, data, recorder, gates, drive)
        if plan.endpoint is None:
            with _process_group(plan):
                _train_in_lockstep(bench, spool)
                write_traffic(spool, plan.rank, None)
        elif plan.workload.strategy.uses_server:
            _train_with_server(bench, spool, plan.endpoint)
        else:
            _train_among_peers(bench, spool, plan.endpoint)


@dataclass(frozen=True)
class _Bench:
    """What a rank has before it meets the others."""

    plan: WorkerPlan
    data: Data
    recorder: Recorder
    gates: Gates
    drive: Drive | None

    def context(
        self, endpoint: Endpoint | None = None, peers: PeerConnections | None = None
    ) -> TrainingContext:
        plan, data, workload = self.plan, self.data, self.plan.workload
        device = torch.device(plan.device)
        model = build_model(
            workload.model, data.input_shape, data.classes, workload.seed, data.vocabulary
        ).to(device)
        torch.manual_seed(workload.seed * 1_000_003 + plan.rank)
        return TrainingContext(
            rank=plan.rank,
            tiers=plan.tiers,
            model=model,
            optimizer=build_optimizer(workload.optimizer, model),
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
        )

    def record_decision(self, step: int, sentence: str) -> None:
        """Put down what has been decided, once for all ranks."""
        note_decision(Spool(self.plan.spool_path), step, sentence)

    @property
    def counts(self) -> bool:
        """Whether the rank counts its work: its host is held to a share of a core, and it computes
        there.
        """
        return self.plan.shared and self.plan.device == CPU

    def intake(self, context: TrainingContext) -> Intake:
        return Intake(
            self.data.train,
            self.recorder,
            context.device,
            fewest_samples(context.model),
            self.drive,
        )

    @property
    def partition(self) -> Partition:
        return Partition.of(self.plan.workload, len(self.data.train), self.plan.world_size)


def _train_in_lockstep(bench: _Bench, spool: Spool, peers: PeerConnections | None = None) -> None:
    plan, gates = bench.plan, bench.gates
    context = bench.context(peers=peers)
    strategy = create_strategy(plan.workload.strategy, context)
    loop = Loop(
        plan, bench.intake(context), bench.partition, strategy, bench.recorder, gates, bench.drive
    )
    zero_ns = _begin_with_all(bench, context, spool)
    loop.balancer = _balancer(bench, context, strategy)
    ending = loop.run(zero_ns)
    if plan.rank == 0:
        _write_done(plan, spool, gates, zero_ns, ending)
    LOGGER.info("stopped by %s after step %d", ending.stopped_by, ending.last_step)


def _train_with_server(bench: _Bench, spool: Spool, told: EndpointPlan) -> None:
    plan = bench.plan
    with Endpoint(told) as endpoint:
        endpoint.connect(plan.world_size)
        context = bench.context(endpoint)
        strategy = create_server_strategy(plan.workload.strategy, context)
        loop = OwnPace(
            bench.intake(context), partial(_dealt, bench, strategy), strategy, bench.recorder
        )
        if plan.late:
            begun_ns = _join_late(bench, context, strategy, spool)
        else:
            endpoint.deliver(plan.world_size, Message(ServerMessageKind.HELLO))
            begun_ns = _begin_with_all(bench, context, spool)
        taken = loop.run(begun_ns)
        write_traffic(spool, plan.rank, endpoint)
        LOGGER.info("the server ended training after %d steps of this rank", taken)


def _dealt(bench: _Bench, strategy: ServerStrategy, step: int) -> Share:
    """This rank's share of a step: the part that the server has dealt it, or an even one."""
    if strategy.next_batch_range is None:
        return bench.partition.share(step, bench.plan.rank)
    return bench.partition.part(step, strategy.next_batch_range)


def _begin_with_all(bench: _Bench, context: TrainingContext, spool: Spool) -> int:
    """Measure at full speed what is to be held to a share, then begin with all others; returns when
    the first step begins.
    """
    _measure_full_speed(bench, context, spool)
    zero_ns = _start_together(bench.plan, spool, bench.gates)
    _count_work(bench, spool)
    return zero_ns


def _join_late(
    bench: _Bench, context: TrainingContext, strategy: AsyncStrategy, spool: Spool
) -> int:
    """Be brought up to date by those who train already; returns when this rank's own training
    begins.

    What steps take at full speed the others have measured, before anything held them back; who is
    held back already measures it itself only where nobody has.
    """
    plan = bench.plan
    if not (spool.full_speed.exists() and read_timed(spool.full_speed)):
        _measure_full_speed(bench, context, spool)
    strategy.join()
    _count_work(bench, spool)
    if bench.recorder.meter is not None:
        bench.recorder.meter.rest()
    write_whole(spool.ready(plan.rank, plan.life), b"")
    LOGGER.info(
        "rank %d of %d on %s has joined before its step %s",
        plan.rank,
        plan.world_size,
        plan.host,
        strategy.next_step,
    )
    return time.monotonic_ns()


def _train_among_peers(bench: _Bench, spool: Spool, told: EndpointPlan) -> None:
    plan, own = bench.plan, bench.plan.workload.strategy.pace == "own"
    tally = Tally(spool.tally, plan.world_size)
    with (
        Endpoint(told, listens=True) as endpoint,
        closing(
            PeerConnections(
                endpoint,
                plan.world_size,
                bench.recorder,
                tally,
                supports_loss=own,
                absent=plan.absent,
                session=plan.session,
                first_step=_steps_begun(plan, spool),
            )
        ) as peers,
    ):
        if not plan.late:
            peers.connect_all()
        if own:
            _train_under_referee(bench, spool, peers, tally)
        else:
            _train_in_lockstep(bench, spool, peers)
        peers.wait_before_exit(partial(write_traffic, spool, plan.rank, endpoint))


def _steps_begun(plan: WorkerPlan, spool: Spool) -> int:
    """In earlier lives of this rank: what it has learnt from, or may have, it does not learn
    again.
    """
    last = read_heartbeats(spool.heartbeat, plan.world_size)[plan.rank]
    return last.step + 1 if last.time_ns else 0


def _train_under_referee(bench: _Bench, spool: Spool, peers: PeerConnections, tally: Tally) -> None:
    plan, context = bench.plan, bench.context(peers=peers)
    strategy = create_peer_strategy(plan.workload.strategy, context)
    account = Account(plan.rank, tally, spool, context.model, lambda: strategy.weight)
    if isinstance(strategy, BackgroundExchange):
        strategy.account, account.between_steps = account, False
    share_of = partial(bench.partition.share, rank=plan.rank)
    loop = OwnPace(bench.intake(context), share_of, strategy, bench.recorder, account)
    begun_ns = (
        _join_late(bench, context, strategy, spool)
        if plan.late
        else _begin_with_all(bench, context, spool)
    )
    taken = loop.run(begun_ns)
    LOGGER.info("the referee ended training after %d steps of this rank", taken)


def _configure_process(plan: WorkerPlan) -> None:
    """One thread, the default reaction to signals, and collectives on the emulated network."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(message)s",
        force=True,
    )
    os.environ.update(collective_environment(plan))
    torch.set_num_threads(1)


def _take_device(plan: WorkerPlan, spool: Spool) -> None:
    """Make the rank's GPU this process's own and try it: a driver or a GPU too old for these wheels
    is told of before training.
    """
    if plan.device == CPU:
        return
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        torch.cuda.set_device(plan.device)
        torch.ones(1, device=plan.device).item()
        model = torch.cuda.get_device_name(plan.device)
    except (RuntimeError, AssertionError) as error:
        raise DeploymentError(
            f"{plan.host}: {plan.device} cannot be used: {str(error).partition(chr(10))[0]} —"
            f" PyTorch {torch.__version__} needs a GPU and a driver that know CUDA"
            f" {torch.version.cuda}: choose other nodes"
        ) from error
    write_whole(spool.device_class(plan.rank), model.encode())


def _drive(plan: WorkerPlan) -> Drive | nullcontext[None]:
    """The host's drive, where it is limited."""
    if plan.drive is None:
        return nullcontext()
    minimize_timer_slack()
    return Drive(Path(plan.drive))


@contextmanager
def _process_group(plan: WorkerPlan) -> Iterator[None]:
    dist.init_process_group(
        plan.backend,
        init_method=plan.init_method,
        rank=plan.rank,
        world_size=plan.world_size,
        timeout=timedelta(seconds=plan.timeout_s),
        # With it NCCL connects here and not in the first step.
        device_id=torch.device(plan.device) if plan.backend == "nccl" else None,
    )
    yield
    # Only after a good end: with a dead peer this would wait for it.
    dist.destroy_process_group()


def _measure_full_speed(bench: _Bench, context: TrainingContext, spool: Spool) -> None:
    """Before anything holds this rank back: what its steps take, and a counter for what they
    will.
    """
    if not bench.counts:
        return
    plan, fewest = bench.plan, fewest_samples(context.model)
    learn = learner_on_a_copy(
        context.model,
        partial(build_optimizer, plan.workload.optimizer),
        encoder_of_steps(plan.workload.strategy),
        reads=plan.workload.strategy.background_exchange,
    )
    indices = pad(bench.partition.share(0, plan.rank).indices, fewest)
    with alone_on_core(spool.full_speed):
        write_timed(spool.full_speed, plan.rank, measure(bench.data.train, indices, fewest, learn))
    WorkCounter(spool.work(plan.rank, plan.life)).close()


def encoder_of_steps(strategy: Parameters) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """What a rank does with the gradients of every step before it sends them; who trains by itself
    for a while sends seldom.
    """
    if not isinstance(strategy, CompressibleParameters):
        return None
    codec = create_vector_codec(strategy.compress)
    each_step = strategy.uses_server or isinstance(strategy, AllReduceParameters)
    return ErrorFeedbackCodec(codec).encode if codec is not None and each_step else None


def _count_work(bench: _Bench, spool: Spool) -> None:
    """From now on, against what all ranks of this machine have measured."""
    if bench.counts:
        counter = WorkCounter(spool.work(bench.plan.rank, bench.plan.life))
        bench.recorder.meter = ComputeMeter(counter, fit(read_timed(spool.full_speed)))


def _balancer(bench: _Bench, context: TrainingContext, strategy: Strategy) -> Balancer | None:
    """What shares out batches by speed, where that is wanted."""
    parameters = bench.plan.workload.strategy
    if not isinstance(parameters, BalancedParameters) or parameters.balanced_batches is None:
        return None
    shares = Shares(bench.partition, fewest_samples(context.model))
    all_gather = strategy.all_gather if isinstance(strategy, RingAllReduce) else None
    return Balancer(parameters.balanced_batches, context, shares, all_gather)


def _start_together(plan: WorkerPlan, spool: Spool, gates: Gates) -> int:
    """Say that this rank is ready, wait until the runner says go and all ranks are there; returns
    when the first step begins.
    """
    write_whole(spool.ready(plan.rank), b"")
    LOGGER.info("rank %d of %d on %s is ready", plan.rank, plan.world_size, plan.host)
    while not spool.go.exists():
        time.sleep(GO_POLL_S)
    gates.arrive(plan.rank, START_GATE, time.monotonic_ns())
    if plan.opens:
        while gates.last_arrival_ns(START_GATE, plan.absent) is None:
            time.sleep(GO_POLL_S)
        zero_ns = gates.open(START_GATE)
        write_whole(spool.zero, json.dumps({"zero_ns": zero_ns}).encode())
    return gates.wait(START_GATE).open_ns


def _write_done(plan: WorkerPlan, spool: Spool, gates: Gates, zero_ns: int, ending: Ending) -> None:
    """Say how training ended; evaluations, the last one too, are outside its clock."""
    evaluations = read_lines(spool.evaluations)
    done = {
        "stopped_by": ending.stopped_by,
        "steps": ending.last_step + 1,
        "samples": ending.samples,
        "accuracy": evaluations[-1]["accuracy"],
        "evaluations": len(evaluations),
        "zero_ns": zero_ns,
        "end_ns": ending.open_ns,
        "paused_ns": gates.paused_ns,
        "makespan_s": (ending.open_ns - zero_ns - gates.paused_ns) / 1e9 / plan.dilation,
    }
    write_whole(spool.done, json.dumps(done).encode())
