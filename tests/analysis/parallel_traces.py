"""torch.profiler documents of a job on devices, with tensor and data parallelism, in closed form.

Each step computes `layers` forward kernels, each followed by an all-reduce of the tensor-parallel
group, the same backward, then reduces gradients in the data-parallel group and updates. No rank
leaves an all-reduce before the last one has arrived. Times are microseconds of one true clock;
`clock` turns them into those of a rank's own clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.analysis.kineto_traces import (
    NCCL,
    STREAM,
    Document,
    annotation,
    document,
    event,
)

REDUCE_US, UPDATE_US, HOST_US = 100.0, 200.0, 100.0
BASE_US = 1000.0


def true_clock(_rank: int, time_us: float) -> float:
    return time_us


@dataclass(frozen=True)
class Job:
    """A job of `world` ranks in tensor-parallel groups of `tensor` consecutive ranks."""

    world: int = 4
    tensor: int = 1
    steps: int = 12
    layers: int = 2
    forward_us: float = 1000.0
    slow_us: Mapping[int, float] = field(default_factory=dict)
    clock: Callable[[int, float], float] = true_clock
    hosts: Mapping[int, str] = field(default_factory=dict)
    names: Callable[[int, str], str] = lambda _, kind: kind
    with_groups: bool = True

    def tensor_group(self, rank: int) -> tuple[int, ...]:
        first = rank - rank % self.tensor
        return tuple(range(first, first + self.tensor))

    def data_group(self, rank: int) -> tuple[int, ...]:
        return tuple(range(rank % self.tensor, self.world, self.tensor))


@dataclass(frozen=True)
class Kernel:
    step: int
    phase: str
    start: float
    end: float
    group: tuple[int, ...] = ()


def run_job(job: Job) -> dict[int, list[Kernel]]:
    """Return the kernels of every rank."""
    now = dict.fromkeys(range(job.world), BASE_US)
    found: dict[int, list[Kernel]] = {rank: [] for rank in now}

    def compute(step: int, phase: str, length: Callable[[int], float]) -> None:
        for rank, start in now.items():
            now[rank] = start + length(rank)
            found[rank].append(Kernel(step, phase, start, now[rank]))

    def reduce(step: int, phase: str, group_of: Callable[[int], tuple[int, ...]]) -> None:
        arrived = dict(now)
        for rank in now:
            group = group_of(rank)
            if len(group) > 1:
                now[rank] = max(arrived[other] for other in group) + REDUCE_US
                found[rank].append(Kernel(step, phase, arrived[rank], now[rank], group))

    for step in range(job.steps):
        for _ in range(job.layers):
            compute(step, "forward", lambda r: job.forward_us + job.slow_us.get(r, 0.0))
            reduce(step, "tp", job.tensor_group)
        for _ in range(job.layers):
            compute(step, "backward", lambda _: 2 * job.forward_us)
            reduce(step, "tp_backward", job.tensor_group)
        reduce(step, "dp", job.data_group)
        compute(step, "optimizer", lambda _: UPDATE_US)
    return found


_CALLED_AT = {"forward": 25.0, "tp": 28.0, "backward": 45.0, "tp_backward": 48.0, "dp": 55.0}


def job_documents(job: Job) -> list[Document]:
    """Return the documents of all ranks."""
    return [_to_document(job, rank, kernels) for rank, kernels in run_job(job).items()]


def _to_document(job: Job, rank: int, kernels: list[Kernel]) -> Document:
    events: list[dict[str, Any]] = []
    number = 0
    for step in range(job.steps):
        own = [kernel for kernel in kernels if kernel.step == step]
        at = own[0].start - HOST_US
        events += [
            annotation(f"ProfilerStep#{step}", at, at + HOST_US),
            annotation("DistributedDataParallel.forward", at + 20, at + 30),
            event("autograd::engine::evaluate_function: Mm", at + 40, at + 60, tid=11),
            annotation("Optimizer.step#SGD.step", at + 80, at + 90),
        ]
        for kernel in own:
            number += 1
            called = at + _CALLED_AT.get(kernel.phase, 85.0)
            events.append(
                event(
                    "cudaLaunchKernel", called, called + 1, cat="cuda_runtime", correlation=number
                )
            )
            events.append(_to_event(job, rank, kernel, number))
    for each in events:
        start, end = each["ts"], each["ts"] + each["dur"]
        each["ts"] = job.clock(rank, start)
        each["dur"] = job.clock(rank, end) - each["ts"]
    made = document(rank, events, job.world, job.hosts.get(rank, "node-1"))
    made["deviceProperties"] = [{"id": 0, "name": "NVIDIA H100"}]
    return made


def _to_event(job: Job, rank: int, kernel: Kernel, number: int) -> dict[str, Any]:
    if not kernel.group:
        return event(
            f"gemm_{kernel.phase}",
            kernel.start,
            kernel.end,
            cat="kernel",
            tid=STREAM,
            correlation=number,
        )
    described: dict[str, Any] = {"In msg nelems": 1000, "dtype": "Float"}
    if job.with_groups:
        described |= {
            "Collective name": "allreduce",
            "Process Group Name": job.names(rank, kernel.phase[:2]),
            "Process Group Ranks": str(list(kernel.group)),
            "Group size": len(kernel.group),
        }
    return event(
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        kernel.start,
        kernel.end,
        cat="kernel",
        tid=NCCL,
        correlation=number,
        **described,
    )
