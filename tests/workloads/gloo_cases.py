"""What the ranks of the tests in test_allreduce.py do; loaded by forkery.py."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import termios
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from laggard.core.span_schema import Lane, Phase
from laggard.workloads.balancing.allocation import AffineCost, allocate_samples
from laggard.workloads.compress.ddp_hooks import TopKHook
from laggard.workloads.compress.parameters import TopKParameters
from laggard.workloads.datasets.dataset import Batch
from laggard.workloads.datasets.partition import Partition
from laggard.workloads.models import build_model
from laggard.workloads.output.worker_output import WorkerOutputDir
from laggard.workloads.strategies.base.parameters import Parameters
from laggard.workloads.strategies.base.strategy import Strategy, TrainingContext
from laggard.workloads.strategies.collective.allreduce import AllReduce, AllReduceParameters
from laggard.workloads.tracing.batch_loader import pad_indices
from laggard.workloads.tracing.ddp_timing import ObservedDDP, have_buckets_reduced
from laggard.workloads.tracing.heartbeat import read_heartbeats
from laggard.workloads.tracing.recorder import Recorder
from laggard.workloads.tracing.row_types import SPAN_ROW
from laggard.workloads.tracing.stream import read_rows
from laggard.workloads.workload import Workload

TCP_LISTEN = 10
"""A state of a connection, of Linux."""


class Slow(nn.Module):
    """Passes on; sleeps in the forward or the backward pass of chosen steps."""

    def __init__(self, steps: list[int], sleep_s: float, phase: str) -> None:
        super().__init__()
        self.steps, self.sleep_s, self.phase, self.step = steps, sleep_s, phase, -1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        slow = self.step in self.steps
        if slow and self.phase == "forward":
            time.sleep(self.sleep_s)
        if slow and self.phase == "backward":
            x.register_hook(lambda _: time.sleep(self.sleep_s))
        return x


def _setup(case: dict[str, int], folder: Path) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=case["rank"],
        world_size=case["world_size"],
    )


def problem(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(5)
    return torch.randn(samples, 1, 8, 8, generator=random), torch.randint(
        0, 10, (samples,), generator=random
    )


def strategy_of(case: dict[str, object]) -> Parameters:
    workload = {"model": "mlp", "dataset": "digits", "strategy": case.get("strategy", "allreduce")}
    return Workload.model_validate(workload).strategy


def context(
    case: dict[str, int], model: nn.Module, lr: float, recorder: Recorder
) -> TrainingContext:
    return TrainingContext(
        rank=case["rank"],
        tiers=tuple(case.get("tiers", ["edge"] * case["world_size"])),
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=lr, momentum=case.get("momentum", 0.0)),
        recorder=recorder,
        last_step=case.get("steps", 1) - 1,
    )


def sizes_of(
    case: dict[str, list[float]], step: int, partition: Partition
) -> tuple[int, ...] | None:
    """By the seconds per sample that the case tells of the ranks; another rank is the first in each
    step."""
    if "sample_s" not in case:
        return None
    turn = step % len(case["sample_s"])
    costs = [AffineCost(0.0, each) for each in (*case["sample_s"][turn:], *case["sample_s"][:turn])]
    return allocate_samples(costs, partition.samples_in(step))


def uneven(argument: str) -> None:
    """Train in float64 on uneven batches, once for each of the cases; save the parameters after the
    last step."""
    given = json.loads(argument)
    common = {key: value for key, value in given.items() if key != "cases"}
    _setup(common, Path(common["folder"]))
    for name, case in given.get("cases", {"": {}}).items():
        folder = Path(common["folder"]) / name
        folder.mkdir(exist_ok=True)
        _train_unevenly({**common, **case}, folder)
    dist.destroy_process_group()


def _train_unevenly(case: dict[str, Any], folder: Path) -> None:
    rank, world = case["rank"], case["world_size"]
    model = build_model(case["model"], (1, 8, 8), 10, 3).double()
    inputs, labels = problem(case["samples"])
    recorder = Recorder(WorkerOutputDir(folder), rank, world)
    strategy = cast(
        "Strategy", strategy_of(case).create_worker(context(case, model, 0.1, recorder))
    )
    partition = Partition(case["samples"], case["batch_size"], world, 7)
    losses = []
    for step in range(case["steps"]):
        share = partition.share(step, rank, sizes_of(case, step, partition))
        indices = torch.from_numpy(pad_indices(share.indices, 1))
        recorder.begin_step(step)
        learnt = strategy.step(step, Batch(inputs[indices].double(), labels[indices]), share)
        losses.append(learnt.loss)
        recorder.end_step(learnt, len(share.indices), share.batch_size)
    recorder.close()
    weights = torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()
    state = torch.cat([tensor.double().flatten() for tensor in model.state_dict().values()]).numpy()
    np.savez(folder / f"result-{rank}.npz", weights=weights, losses=np.array(losses), state=state)


class Noted:
    """A device's clock that notes in which phase the host waits for the device."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.phases = folder, list[str]()

    def synchronize(self) -> None:
        (beat,) = read_heartbeats(WorkerOutputDir(self.folder).heartbeat, 1)
        self.phases.append(beat.phase.value)


def settled(argument: str) -> None:
    """Take one step of a model with buffers, alone; note when the device's clock is asked."""
    case = json.loads(argument)
    folder = Path(case["folder"])
    _setup(case, folder)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10))
    with Recorder(WorkerOutputDir(folder), 0, 1) as recorder:
        strategy = AllReduce(AllReduceParameters(), context(case, model, 0.01, recorder))
        clock = Noted(folder)
        strategy._clock = clock
        recorder.begin_step(0)
        recorder.enter(Phase.PREP)
        strategy.step(0, Batch(*problem(8)), Partition(8, 8, 1, 7).share(0, 0))
    (folder / "settled.json").write_text(json.dumps(clock.phases))
    dist.destroy_process_group()


def realtime_offset_ns() -> int:
    """The time of day less the monotonic time, from the closest of many readings of both."""

    def read() -> tuple[int, int]:
        before, today, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        return after - before, today - before

    return min(read() for _ in range(1000))[1]


def timed(argument: str) -> None:
    """Train a little, rank 1 asleep in some steps; save when DDP's own log has backward passes
    end."""
    case = json.loads(argument)
    folder, rank, world = Path(case["folder"]), case["rank"], case["world_size"]
    _setup(case, folder)
    torch.manual_seed(1)
    channels = case.get("batch_norm", False)
    slow = Slow(case["slow_steps"] if rank == 1 else [], case["sleep_s"], case["phase"])
    hidden = case.get("hidden", 256)
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, hidden),
        slow,
        nn.BatchNorm1d(hidden) if channels else nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 10),
    )
    recorder = Recorder(WorkerOutputDir(folder), rank, world)
    told = {"trace_buckets": case.get("trace_buckets", False), "compress": case.get("compress")}
    parameters = AllReduceParameters.model_validate(told)
    strategy = AllReduce(parameters, context(case, model, 0.01, recorder))
    ddp = strategy._ddp
    ddp._set_ddp_runtime_logging_sample_rate(1)
    inputs, labels = problem(256)
    partition = Partition(256, 64, world, 7)
    logged_ns, offset_ns = [], realtime_offset_ns()
    for step in range(case["steps"]):
        share = partition.share(step, rank)
        indices = torch.from_numpy(share.indices)
        recorder.begin_step(step)
        learnt = strategy.step(step, Batch(inputs[indices], labels[indices]), share)
        recorder.end_step(learnt, len(share.indices), share.batch_size)
        ddp.logger.set_runtime_stats_and_log()
        log = ddp._get_ddp_logging_data()
        logged_ns.append(int(log["backward_compute_time_end"]) - offset_ns)
    recorder.close()
    np.savez(folder / f"result-{rank}.npz", logged_ns=np.array(logged_ns))
    dist.destroy_process_group()


def rearranged(argument: str) -> None:
    """Average the same gradients again and again, alone, in two buckets that DDP rearranges; save
    what came and what is kept back."""
    case = json.loads(argument)
    folder = Path(case["folder"])
    _setup(case, folder)
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 1000), nn.ReLU(), nn.Linear(1000, 400)
    ).double()
    inputs, _ = problem(16)
    raw = torch.autograd.grad(model(inputs.double()).square().mean(), list(model.parameters()))
    hook = TopKHook(TopKParameters(fraction=case["fraction"]))
    ddp, buckets = ObservedDDP(model), list[tuple[int, int]]()

    class Listener:
        def bucket(self, start_ns: int, end_ns: int, payload_bytes: int) -> None:
            buckets.append((end_ns - start_ns, payload_bytes))

    have_buckets_reduced(ddp, hook, Listener(), time.monotonic_ns)
    sent = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for _ in range(case["steps"]):
        ddp(inputs.double()).square().mean().backward()
        sent = [
            total + parameter.grad
            for total, parameter in zip(sent, model.parameters(), strict=True)
        ]
        model.zero_grad()
    kept = [hook._residuals[parameter] for parameter in model.parameters()]
    vectors = {
        name: torch.cat([each.flatten() for each in of])
        for name, of in zip(("raw", "sent", "kept"), (raw, sent, kept), strict=True)
    }
    np.savez(
        folder / "result-0.npz",
        **{name: each.numpy() for name, each in vectors.items()},
        buckets=np.array(buckets),
    )
    dist.destroy_process_group()


def acknowledged_bytes() -> int:
    """What peers have acknowledged of all that this process has sent over TCP, once that is all."""
    while (counted := _count_bytes())[1]:
        time.sleep(0.005)
    return counted[0]


def _count_bytes() -> tuple[int, int]:
    """Bytes that are acknowledged, and those that are not yet."""
    acknowledged = queued = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            if not str(descriptor.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(descriptor.name))) as each:
                if each.family == socket.AF_INET and each.type == socket.SOCK_STREAM:
                    # struct tcp_info: tcpi_bytes_acked is at byte 120.
                    info = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
                    acknowledged += struct.unpack_from("=Q", info, 120)[0]
                    if info[0] != TCP_LISTEN:
                        waiting = fcntl.ioctl(each, termios.TIOCOUTQ, bytes(4))
                        queued += struct.unpack("=i", waiting)[0]
        except OSError:
            continue  # the descriptor of the listing itself, or one that has been closed
    return acknowledged, queued


def counted(argument: str) -> None:
    """Train; compare the bytes that spans tell of with what the kernel says was acknowledged."""
    case = json.loads(argument)
    folder, rank, world = Path(case["folder"]), case["rank"], case["world_size"]
    _setup(case, folder)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 1500), nn.ReLU(), nn.Linear(1500, 400))
    with Recorder(WorkerOutputDir(folder), rank, world) as recorder:
        strategy = cast(
            "Strategy", strategy_of(case).create_worker(context(case, model, 0.01, recorder))
        )
        inputs, labels = problem(64)
        share = Partition(64, 64, world, 7).share(0, rank)
        indices = torch.from_numpy(share.indices)
        dist.barrier()
        before = acknowledged_bytes()
        for step in range(case["steps"]):
            recorder.begin_step(step)
            strategy.step(step, Batch(inputs[indices], labels[indices]), share)
        recorder.end_phase()
        after = acknowledged_bytes()
        dist.barrier()
    rows = read_rows(WorkerOutputDir(folder).spans(rank), SPAN_ROW)
    comm = rows[(rows["phase"] == Phase.COMM.code) & (rows["lane"] == Lane.MAIN)]
    np.savez(folder / f"result-{rank}.npz", acknowledged=after - before, told=comm["bytes"].sum())
    dist.destroy_process_group()
