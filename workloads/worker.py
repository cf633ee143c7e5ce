"""The process of one rank: `main` is what the runner starts in the rank's host."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from laggard.drive import Drive, sharpen_sleeps
from laggard.errors import DeploymentError
from laggard.work import WorkCounter
from laggard.workloads.compute_meter import ComputeMeter
from laggard.workloads.datasets import open_data
from laggard.workloads.datasets.dataset import Data
from laggard.workloads.devices import CPU, collective_environment
from laggard.workloads.full_speed import alone_on_core, fit, learner_on_a_copy, measure, read_timed, write_timed
from laggard.workloads.gates import START_GATE, Gates
from laggard.workloads.loop import Ending, Loop, pad
from laggard.workloads.model import OptimizerSpec
from laggard.workloads.models import build_model
from laggard.workloads.partition import Partition
from laggard.workloads.plan import WorkerPlan
from laggard.workloads.spool import Spool, read_lines, write_whole
from laggard.workloads.strategies import take_up
from laggard.workloads.strategies.strategy import Seat
from laggard.workloads.tracing.recorder import Recorder

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
    with _drive(plan) as drive, Recorder(spool, plan.rank, plan.world_size) as recorder, _process_group(plan):
        loop = _build_loop(plan, data, recorder, gates, drive)
        counted = plan.shared and plan.device == CPU
        if counted:
            _measure_full_speed(loop, spool)
        write_whole(spool.ready(plan.rank), b"")
        LOGGER.info("rank %d of %d on %s is ready", plan.rank, plan.world_size, plan.host)
        zero_ns = _start_together(plan, spool, gates)
        if counted:
            recorder.meter = ComputeMeter(WorkCounter(spool.work(plan.rank)), fit(read_timed(spool.full_speed)))
        ending = loop.run(zero_ns)
        if plan.rank == 0:
            _write_done(plan, spool, gates, zero_ns, ending)
        LOGGER.info("stopped by %s after step %d", ending.stopped_by, ending.last_step)


def _configure_process(plan: WorkerPlan) -> None:
    """One thread, the default reaction to signals, and collectives on the emulated network."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s", force=True
    )
    os.environ.update(collective_environment(plan))
    torch.set_num_threads(1)


def _take_device(plan: WorkerPlan, spool: Spool) -> None:
    """Make the rank's GPU this process's own and try it: a driver or a GPU too old for these wheels is told of before training."""
    if plan.device == CPU:
        return
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        torch.cuda.set_device(plan.device)
        torch.ones(1, device=plan.device).item()
        model = torch.cuda.get_device_name(plan.device)
    except (RuntimeError, AssertionError) as error:
        raise DeploymentError(
            f"{plan.host}: {plan.device} cannot be used: {str(error).partition(chr(10))[0]} — PyTorch {torch.__version__} "
            f"needs a GPU and a driver that know CUDA {torch.version.cuda}: choose other nodes"
        ) from error
    write_whole(spool.device_class(plan.rank), model.encode())


def _drive(plan: WorkerPlan) -> Drive | nullcontext[None]:
    """The host's drive, where it is limited."""
    if plan.drive is None:
        return nullcontext()
    sharpen_sleeps()
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


def _build_loop(plan: WorkerPlan, data: Data, recorder: Recorder, gates: Gates, drive: Drive | None) -> Loop:
    workload, device = plan.workload, torch.device(plan.device)
    model = build_model(workload.model, data.input_shape, data.classes, workload.seed, data.vocabulary).to(device)
    torch.manual_seed(workload.seed * 1_000_003 + plan.rank)
    seat = Seat(
        rank=plan.rank,
        tiers=plan.tiers,
        model=model,
        optimizer=build_optimizer(workload.optimizer, model),
        recorder=recorder,
        device=device,
        backend=plan.backend,
        last_step=None if workload.stop.steps is None else workload.stop.steps - 1,
    )
    strategy = take_up(workload.strategy, seat)
    partition = Partition(len(data.train), min(workload.batch_size, len(data.train)), plan.world_size, workload.seed)
    return Loop(plan, data.train, partition, strategy, recorder, gates, fewest_samples(model), drive)


def _measure_full_speed(loop: Loop, spool: Spool) -> None:
    """Before anything holds this rank back: what its steps take, and a counter for what they will."""
    plan = loop.plan
    learn = learner_on_a_copy(loop.strategy.model, partial(build_optimizer, plan.workload.optimizer))
    indices = pad(loop.partition.share(0, plan.rank).indices, loop.padded_to)
    with alone_on_core(spool.full_speed):
        write_timed(spool.full_speed, plan.rank, measure(loop.train, indices, loop.padded_to, learn))
    WorkCounter(spool.work(plan.rank)).close()


def build_optimizer(spec: OptimizerSpec, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer that `workload.yaml` names, over all of a model's parameters, which are where they will be."""
    # On a GPU torch's own choice, one kernel for many tensors; on the processor it is one by one, which torch need not find out each step.
    foreach = None if any(parameter.is_cuda for parameter in model.parameters()) else False
    if spec.name == "sgd":
        return torch.optim.SGD(
            model.parameters(), lr=spec.lr, momentum=spec.momentum, weight_decay=spec.weight_decay, foreach=foreach
        )
    kind = torch.optim.Adam if spec.name == "adam" else torch.optim.AdamW
    return kind(model.parameters(), lr=spec.lr, weight_decay=spec.weight_decay, foreach=foreach)


def fewest_samples(model: nn.Module) -> int:
    """Samples that a model needs to be trained on: two with BatchNorm, which has no variance of one."""
    return 2 if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules()) else 1  # noqa: SLF001 - the common base has no public name


def _start_together(plan: WorkerPlan, spool: Spool, gates: Gates) -> int:
    """Wait until the runner says go and all ranks are there; returns when the first step begins."""
    while not spool.go.exists():
        time.sleep(GO_POLL_S)
    gates.arrive(plan.rank, START_GATE, time.monotonic_ns())
    if plan.rank == 0:
        while gates.last_arrival_ns(START_GATE) is None:
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
