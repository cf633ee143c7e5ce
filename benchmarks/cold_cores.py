"""CPU time of a training step after its core was idle, and after it was kept busy.

    python benchmarks/cold_cores.py [rounds]

It shows why hosts' cores are kept awake. One process trains a small network on one core and pauses
before each step. The table shows the CPU time of a step (median and tenth percentile) by the
length of the pause, in three situations: an idle-priority process runs on the core during the
pause; the same process spins instead of sleeping; the core is idle. In the second situation no
other process gets the core, so any loss is due to the pause itself.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack

from laggard.network_emulation.compute.cpu_plan import usable_cores
from laggard.network_emulation.compute.warmth import keep_warm
from laggard.network_emulation.forked import end_companion

PAUSES_MS = (0, 1, 5, 15, 75)
STEPS = 40


def spin(seconds: float) -> None:
    """Keep the core busy for some seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def make_step() -> Callable[[], None]:
    """Return a training step of a small convolutional network, 32 samples of 8 x 8."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(
        *layers, nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(2048, 10)
    )
    samples, labels = torch.randn(32, 1, 8, 8), torch.randint(0, 10, (32,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(samples), labels).backward()
        optimizer.step()

    return step


def time_steps(
    step: Callable[[], None], pause: Callable[[float], None], pause_ms: float
) -> list[float]:
    """Return the CPU time of some steps in ms, each after a pause."""
    times = []
    for _ in range(STEPS):
        pause(pause_ms / 1000)
        began = time.thread_time()
        step()
        times.append(1000 * (time.thread_time() - began))
    return times


def main() -> None:
    """Print a table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    core = usable_cores()[-1]
    os.sched_setaffinity(0, {core})
    step = make_step()
    # Warm up: allocations and kernels of the first steps take longer.
    for _ in range(100):
        step()
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for _ in range(rounds):
        for name, pause, warm in (
            ("kept busy", time.sleep, True),
            ("itself spinning", spin, False),
            ("idle", time.sleep, False),
        ):
            with ExitStack() as stack:
                for warmer in keep_warm([core]) if warm else ():
                    stack.callback(end_companion, warmer)
                for pause_ms in PAUSES_MS:
                    found[name, pause_ms] += time_steps(step, pause, pause_ms)
    print(
        "| core during the pause | " + " | ".join(f"{pause_ms} ms" for pause_ms in PAUSES_MS) + " |"
    )
    print("|---|" + "---|" * len(PAUSES_MS))
    for name in dict.fromkeys(name for name, _ in found):
        cells = (found[name, pause_ms] for pause_ms in PAUSES_MS)
        shown = (
            f"{statistics.median(cell):.2f} ({statistics.quantiles(cell, n=10)[0]:.2f})"
            for cell in cells
        )
        print(f"| {name} | " + " | ".join(shown) + " |")


if __name__ == "__main__":
    main()
