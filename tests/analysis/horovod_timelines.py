"""Timelines as Horovod's writer makes them; times are microseconds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

STEP_US = 100_000
Event = dict[str, Any]


def process(tensor: int) -> list[Event]:
    named: Event = {
        "name": "process_name",
        "ph": "M",
        "pid": tensor,
        "args": {"name": f"t{tensor}"},
    }
    sort: Event = {
        "name": "process_sort_index",
        "ph": "M",
        "pid": tensor,
        "args": {"sort_index": 1},
    }
    return [named, sort]


def negotiation(
    tensor: int, ready: Sequence[tuple[int, int]], kind: str = "ALLREDUCE", took: int = 500
) -> list[Event]:
    """The ticks of (rank, time), then the operation with two activities."""
    ready = sorted(ready, key=lambda item: item[1])
    last = ready[-1][1]
    begin: Event = {"ph": "B", "name": f"NEGOTIATE_{kind}", "ts": ready[0][1], "pid": tensor}
    ticks: list[Event] = [
        {"ph": "X", "name": str(rank), "ts": at, "pid": tensor, "dur": 0} for rank, at in ready
    ]
    return [
        begin,
        *ticks,
        {"ph": "E", "ts": last, "pid": tensor},
        {"ph": "B", "name": kind, "ts": last + 10, "pid": tensor},
        {"ph": "B", "name": "QUEUE", "ts": last + 10, "pid": tensor},
        {"ph": "E", "ts": last + 20, "pid": tensor},
        {"ph": "B", "name": f"NCCL_{kind}", "ts": last + 20, "pid": tensor},
        {"ph": "E", "ts": last + took, "pid": tensor},
        {"ph": "E", "ts": last + took, "pid": tensor, "args": {"dtype": "float32", "shape": "[9]"}},
    ]


def training(late: Sequence[int], steps: int = 4) -> list[Event]:
    """Parameters are broadcast once; then two tensors are reduced in every step."""
    ranks = range(len(late))
    events = [*process(0), *process(1), *process(2), *process(3)]
    events += negotiation(1, [(rank, 1000) for rank in ranks], "BROADCAST")
    for step in range(steps):
        at = (step + 1) * STEP_US
        for tensor, after in ((2, 0), (3, 10_000)):
            ready = [(rank, at + after + late[rank]) for rank in ranks]
            events += negotiation(tensor, ready)
    return events


def write(path: Path, events: Sequence[Event]) -> Path:
    path.write_text("[\n" + ",\n".join(map(json.dumps, events)) + "]")
    return path
