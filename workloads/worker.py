"""The process of one rank: `main` is what the runner starts in the rank's host."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from laggard.workloads.datasets import open_data
from laggard.workloads.datasets.dataset import Data
from laggard.workloads.gates import START_GATE, Gates
from laggard.workloads.loop import Ending, Loop
from laggard.workloads.model import OptimizerSpec
from laggard.workloads.models import build_model
from laggard.workloads.partition import Partition
from laggard.workloads.plan import WorkerPlan
from laggard.workloads.spool import Spool, read_lines, write_whole
from laggard.workloads.strategies.allreduce import AllReduce
from laggard.workloads.tracing.recorder import Recorder

LOGGER = logging.getLogger(__name__)
GO_POLL_S = 0.01


def main(argument: str) -> None:
    """Train as one rank.

    Args:
        argument: a `WorkerPlan` as JSON.

    Raises:
        InputError: the model or the dataset is not what it should be.
        RuntimeError: a peer died, or a collective timed out; torch's message says which.
    """
    plan = WorkerPlan.model_validate_json(argument)
    _configure_process(plan)
    spool = Spool(plan.spool_path)
    data = open_data(plan.workload, plan.spool_path)
    gates = Gates(spool.gates, plan.world_size, relayed=plan.relayed)
    with Recorder(spool, plan.rank, plan.world_size) as recorder, _process_group(plan):
        loop = _build_loop(plan, data, recorder, gates)
        write_whole(spool.ready(plan.rank), b"")
        LOGGER.info("rank %d of %d on %s is ready", plan.rank, plan.world_size, plan.host)
        zero_ns = _start_together(plan, spool, gates)
        ending = loop.run(zero_ns)
        if plan.rank == 0:
            _write_done(plan, spool, gates, zero_ns, ending)
        LOGGER.info("stopped by %s after step %d", ending.stopped_by, ending.last_step)


def _configure_process(plan: WorkerPlan) -> None:
    """One thread, the default reaction to signals, and gloo on the emulated network."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    os.environ["GLOO_SOCKET_IFNAME"] = plan.interface
    torch.set_num_threads(1)


@contextmanager
def _process_group(plan: WorkerPlan) -> Iterator[None]:
    dist.init_process_group(
        "gloo",
        init_method=plan.init_method,
        rank=plan.rank,
        world_size=plan.world_size,
        timeout=timedelta(seconds=plan.timeout_s),
    )
    yield
    # Only after a good end: with a dead peer this would wait for it.
    dist.destroy_process_group()


def _build_loop(plan: WorkerPlan, data: Data, recorder: Recorder, gates: Gates) -> Loop:
    workload = plan.workload
    model = build_model(workload.model, data.input_shape, data.classes, workload.seed, data.vocabulary)
    torch.manual_seed(workload.seed * 1_000_003 + plan.rank)
    optimizer = build_optimizer(workload.optimizer, model)
    strategy = AllReduce(model, optimizer, recorder, trace_buckets=workload.strategy.trace_buckets)
    partition = Partition(len(data.train), min(workload.batch_size, len(data.train)), plan.world_size, workload.seed)
    return Loop(plan, data.train, partition, strategy, recorder, gates, fewest_samples(model))


def build_optimizer(spec: OptimizerSpec, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer that `workload.yaml` names, over all of a model's parameters."""
    if spec.name == "sgd":
        return torch.optim.SGD(
            model.parameters(), lr=spec.lr, momentum=spec.momentum, weight_decay=spec.weight_decay, foreach=False
        )
    kind = torch.optim.Adam if spec.name == "adam" else torch.optim.AdamW
    return kind(model.parameters(), lr=spec.lr, weight_decay=spec.weight_decay, foreach=False)


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
