"""torch.profiler documents made by hand, of a host alone and of a host with a device; times are
microseconds."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MAIN, GLOO, STREAM, NCCL = 10, 20, 7, 40
STEP_US = 1000
Document = dict[str, Any]


def event(
    name: str, start: float, end: float, *, cat: str = "cpu_op", tid: int = MAIN, **arguments: Any
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 1,
        "tid": tid,
        "ts": start,
        "dur": end - start,
        "args": arguments,
    }


def annotation(
    name: str, start: float, end: float, *, tid: int = MAIN, **arguments: Any
) -> dict[str, Any]:
    return event(name, start, end, cat="user_annotation", tid=tid, **arguments)


def host_step(
    number: int, at: float, late: float = 0.0, met: float | None = None
) -> list[dict[str, Any]]:
    """Fetch 0-50, prepare 60-80, forward 100-200 (+ late), backward to 400, all-reduce to 600,
    optimizer to 700, all from `at`."""
    end = at + 600 if met is None else met
    return [
        annotation(f"ProfilerStep#{number}", at, at + STEP_US - 1),
        annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, at + 50),
        event("aten::to", at + 60, at + 80),
        annotation("DistributedDataParallel.forward", at + 100, at + 180 + late),
        event("aten::linear", at + 110, at + 170 + late),
        event("aten::cross_entropy_loss", at + 185 + late, at + 200 + late),
        event(
            "autograd::engine::evaluate_function: AddmmBackward0", at + 210 + late, at + 300 + late
        ),
        event(
            "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad",
            at + 300 + late,
            at + 400 + late,
        ),
        event(
            "c10d::allreduce_",
            at + 380 + late,
            at + 399 + late,
            **{"Input Dims": [[[250]]], "Input type": ["TensorList"]},
        ),
        annotation(
            "gloo:all_reduce",
            at + 390 + late,
            end,
            tid=GLOO,
            **{"Input Dims": [[250]], "Input type": ["float"]},
        ),
        event("torch.distributed.ddp.reducer::copy_bucket_to_grad", end + 1, end + 5),
        event("aten::clip_grad_norm_", end + 10, end + 20),
        annotation("Optimizer.step#SGD.step", end + 20, end + 100),
        event("aten::item", end + 120, end + 130),
    ]


def device_step(number: int, at: float, met: float) -> list[dict[str, Any]]:
    """The host launches within 100 of `at`; the device computes forward 50-250, backward to 450,
    reduces 300-`met`, steps after."""
    calls = [
        ("cudaMemcpyAsync", at + 10, 1),
        ("cudaLaunchKernel", at + 25, 2),
        ("cudaLaunchKernel", at + 45, 3),
        ("cudaLaunchKernel", at + 50, 4),
        ("cudaLaunchKernel", at + 85, 5),
    ]
    first = 10 * number
    return [
        annotation(f"ProfilerStep#{number}", at, at + 100),
        annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", at + 1, at + 8),
        event("aten::copy_", at + 9, at + 12),
        annotation("DistributedDataParallel.forward", at + 20, at + 30),
        event("autograd::engine::evaluate_function: AddmmBackward0", at + 40, at + 60, tid=11),
        annotation("Optimizer.step#SGD.step", at + 80, at + 90),
        *(event(name, t, t + 2, cat="cuda_runtime", correlation=first + n) for name, t, n in calls),
        event(
            "Memcpy HtoD (Pageable -> Device)",
            at + 30,
            at + 50,
            cat="gpu_memcpy",
            tid=STREAM,
            correlation=first + 1,
        ),
        event("gemm_forward", at + 50, at + 250, cat="kernel", tid=STREAM, correlation=first + 2),
        event("gemm_backward", at + 250, at + 450, cat="kernel", tid=STREAM, correlation=first + 3),
        event(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            at + 300,
            met,
            cat="kernel",
            tid=NCCL,
            correlation=first + 4,
            **{"In msg nelems": 1000, "dtype": "Float"},
        ),
        event("sgd", met, met + 100, cat="kernel", tid=STREAM, correlation=first + 5),
    ]


def document(
    rank: int, events: Sequence[Mapping[str, Any]], world: int = 2, host: str = "node-1"
) -> Document:
    return {
        "schemaVersion": 1,
        "deviceProperties": [],
        "distributedInfo": {"backend": "gloo", "rank": rank, "world_size": world},
        "host_name": host,
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "traceEvents": [*events, {"ph": "M", "name": "process_name", "pid": 1}],
    }


def host_document(
    rank: int, steps: int = 4, late: float = 0.0, host: str = "node-1", ahead_us: float = 0.0
) -> Document:
    """A rank that is `late` in every forward, on a clock that is ahead; collectives end when the
    latest of 0 and 100 has come."""
    events = [
        made
        for n in range(steps)
        for made in host_step(n + 1, n * STEP_US + ahead_us, late, n * STEP_US + ahead_us + 700)
    ]
    return document(rank, events, host=host)


def write(folder: Path, documents: Sequence[Document], *, zipped: bool = False) -> Path:
    folder.mkdir(exist_ok=True)
    for n, made in enumerate(documents):
        text = json.dumps(made)
        if zipped:
            (folder / f"worker{n}.pt.trace.json.gz").write_bytes(gzip.compress(text.encode()))
        else:
            (folder / f"worker{n}.json").write_text(text)
    return folder
