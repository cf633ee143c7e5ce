"""Overhead of tracing per training step.

    python benchmarks/tracing_overhead.py [--steps 6000] [--block 50] [--model mlp cnn]

Recorded and unrecorded blocks of steps alternate within one training. Two ranks train with DDP
over loopback, with a core each. In every other block the recorder and its callback in the backward
pass are skipped, and nothing else. A step's time is that of rank 0. Each recorded block is
compared with the unrecorded one after it: the overhead is the mean of the logarithms of their
medians' ratios, with Student's 95 % interval. Goal: at most 1 %.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

BATCH = 128
CHANNELS, CLASSES = (1, 8, 8), 10
WARM_UP_BLOCKS = 4


def train(rank: int, folder: str, model_name: str, blocks: int, block: int) -> None:
    """Train as one rank; rank 0 saves the median step time of every block, in seconds."""
    import torch
    import torch.distributed as dist

    from laggard.workloads.datasets.dataset import Batch
    from laggard.workloads.datasets.partition import Partition
    from laggard.workloads.models import build_model
    from laggard.workloads.output.worker_output import WorkerOutputDir
    from laggard.workloads.strategies.base.strategy import TrainingContext
    from laggard.workloads.strategies.collective.allreduce import AllReduce, AllReduceParameters
    from laggard.workloads.tracing import ddp_timing
    from laggard.workloads.tracing.recorder import Recorder

    class Toggled(Recorder):
        """Recorder that can be switched off."""

        on = True

        def begin_step(self, step: int, at_ns: int | None = None) -> int:
            return super().begin_step(step, at_ns) if self.on else 0

        def enter(self, *args: object, **kwargs: object) -> int:
            return super().enter(*args, **kwargs) if self.on else 0  # type: ignore[arg-type]

        def end_step(self, *args: object) -> None:
            if self.on:
                super().end_step(*args)  # type: ignore[arg-type]

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % len(os.sched_getaffinity(0))]})
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    model = build_model(model_name, CHANNELS, CLASSES, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    samples = torch.rand((BATCH, *CHANNELS))
    partition = Partition(samples=10 * BATCH, batch_size=BATCH, world_size=2, seed=1)
    with Toggled(WorkerOutputDir(Path(folder)), rank, 2) as recorder:
        strategy = AllReduce(
            AllReduceParameters(), TrainingContext(rank, ("a", "a"), model, optimizer, recorder)
        )
        called_back: Callable[..., None] = ddp_timing.on_backward_computed
        ddp_timing.on_backward_computed = lambda *args: called_back(*args) if recorder.on else None  # type: ignore[assignment]
        medians = []
        for number in range(blocks):
            recorder.on, times = number % 2 == 0, []
            for step in range(number * block, (number + 1) * block):
                share = partition.share(step, rank)
                begun = time.perf_counter()
                recorder.begin_step(step)
                batch = Batch(
                    samples[: len(share.indices)],
                    torch.zeros(len(share.indices), dtype=torch.int64),
                )
                learnt = strategy.step(step, batch, share)
                recorder.end_step(learnt, len(share.indices), share.batch_size)
                times.append(time.perf_counter() - begun)
            if recorder.on:
                recorder.end_phase()
            medians.append(statistics.median(times))
    dist.destroy_process_group()
    if rank == 0:
        np.save(f"{folder}/medians.npy", np.array(medians))


def measure(model: str, steps: int, block: int) -> tuple[float, float, float, float]:
    """Return overhead, both ends of its interval, and the median unrecorded step in seconds."""
    from laggard.analysis.estimates.estimate import estimate_mean

    blocks = max(steps // block, WARM_UP_BLOCKS + 4)
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        ranks = [
            context.Process(target=train, args=(rank, folder, model, blocks, block))
            for rank in range(2)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        medians = np.load(f"{folder}/medians.npy")[WARM_UP_BLOCKS:]
    # Even blocks are recorded, and an even number of blocks warms up.
    pairs = len(medians) // 2
    recorded, bare = medians[: 2 * pairs : 2], medians[1 : 2 * pairs : 2]
    found = estimate_mean(np.log(recorded / bare).tolist())
    low, high = (value if value is not None else math.nan for value in (found.low, found.high))
    return math.expm1(found.mean), math.expm1(low), math.expm1(high), float(np.median(bare))


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--block", type=int, default=50)
    parser.add_argument("--model", nargs="+", default=["mlp", "cnn", "wide_cnn"])
    asked = parser.parse_args()
    print("| model | step, ms | overhead of tracing | 95 % interval |")
    print("|---|---|---|---|", flush=True)
    for model in asked.model:
        overhead, low, high, bare_s = measure(model, asked.steps, asked.block)
        print(
            f"| `{model}` | {1e3 * bare_s:.2f} | {overhead:+.2%} | {low:+.2%} to {high:+.2%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
