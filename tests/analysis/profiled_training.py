"""A tiny DDP training under the real torch.profiler: `python -m tests.analysis.profiled_training
RANK WORLD FOLDER SLOW_RANK SLEEP_S`.

It writes `rank<N>.json`, as the profiler exports it, and `told<N>.json`: what the process itself
measured of each step, in nanoseconds.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

STEPS, WARM_UP, BATCH = 4, 2, 8


class Net(torch.nn.Module):
    def __init__(self, sleep_s: float) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 4)
        )
        self.sleep_s = sleep_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.layers[0](x)
        time.sleep(self.sleep_s)
        result: torch.Tensor = self.layers[2](self.layers[1](hidden))
        return result


def main(rank: int, world: int, folder: Path, slow_rank: int, sleep_s: float) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world
    )
    model = torch.nn.parallel.DistributedDataParallel(Net(sleep_s if rank == slow_rank else 0.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(128, 16), torch.randint(0, 4, (128,)))
    loader = iter(torch.utils.data.DataLoader(data, batch_size=BATCH))
    told: list[dict[str, int]] = []
    schedule = torch.profiler.schedule(wait=0, warmup=WARM_UP, active=STEPS, repeat=1)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule, record_shapes=True
    ) as profiler:
        for _ in range(WARM_UP + STEPS):
            begin = time.perf_counter_ns()
            x, y = next(loader)
            fetched = time.perf_counter_ns()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            forward = time.perf_counter_ns()
            loss.backward()
            backward = time.perf_counter_ns()
            optimizer.step()
            end = time.perf_counter_ns()
            profiler.step()
            told.append(
                {
                    "fetch": fetched - begin,
                    "forward": forward - fetched,
                    "backward": backward - forward,
                    "optimizer": end - backward,
                }
            )
    profiler.export_chrome_trace(str(folder / f"rank{rank}.json"))
    parameters = sum(p.numel() for p in model.parameters())
    (folder / f"told{rank}.txt").write_text(
        json.dumps({"steps": told[WARM_UP:], "parameters": parameters})
    )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(
        int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
    )
