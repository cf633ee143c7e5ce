"""What the ranks of the tests in test_group_connections.py do; loaded by forkery.py."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from laggard.workloads.models.initial_model import read_model, write_model
from laggard.workloads.strategies.base.group_connections import (
    LAZY_VARIABLE,
    connect_collectives,
    connect_to_all,
)


def _join(case: dict[str, int], folder: Path) -> None:
    os.environ.update({"GLOO_SOCKET_IFNAME": "lo", LAZY_VARIABLE: "1"})
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=case["rank"],
        world_size=case["world_size"],
    )


def _count_sockets() -> int:
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            count += str(descriptor.readlink()).startswith("socket:")
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
    return count


def _meet(folder: Path, rank: int, world: int) -> None:
    """Wait for all ranks without a connection; a peer that is ahead would connect to this rank."""
    (folder / f"counted-{rank}").touch()
    while len(list(folder.glob("counted-*"))) < world:
        time.sleep(0.01)


def connected(argument: str) -> None:
    """Count sockets after connecting, after all collectives, and after an all-to-all exchange."""
    case = json.loads(argument)
    folder, rank, world = Path(case["folder"]), case["rank"], case["world_size"]
    _join(case, folder)
    connect_collectives(range(world), rank)
    counts = [_count_sockets()]
    for size in (1, 300_000):
        value = torch.full((size,), float(rank))
        dist.all_reduce(value)
        dist.broadcast(value, 0)
        dist.all_gather_into_tensor(torch.empty(world * size), value)
        assert value[0] == sum(range(world))
    counts.append(_count_sockets())
    _meet(folder, rank, world)
    connect_to_all(range(world), rank)
    counts.append(_count_sockets())
    dist.all_to_all_single(torch.empty(world), torch.zeros(world))
    counts.append(_count_sockets())
    (folder / f"sockets-{rank}").write_text(json.dumps(counts))
    dist.barrier()
    dist.destroy_process_group()


class _Mixed(nn.Module):
    """Parameters and buffers of several types, shapes and sizes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(3, width)
        self.norm = nn.BatchNorm1d(width)
        self.scale = nn.Parameter(torch.randn(2, 2, dtype=torch.float16))
        self.register_buffer("nothing", torch.zeros(0))


def agreed(argument: str) -> None:
    """Build a model of this rank's own, take over that of rank 0, and save it."""
    case = json.loads(argument)
    folder, rank = Path(case["folder"]), case["rank"]
    torch.manual_seed(rank)
    model = _Mixed(case["widths"][rank])
    if rank == 0:
        write_model(folder / "initial_model", model)
    else:
        read_model(folder / "initial_model", model, rank)
    torch.save(model.state_dict(), folder / f"state-{rank}.pt")
