"""Initial model that the ranks of one machine agree on through a file, not over emulated links.

DistributedDataParallel verifies and broadcasts the initial model by collectives. Over emulated
links, its all-gather takes one delay per rank, which is minutes with many ranks.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import nn

from laggard.core.errors import InputError
from laggard.workloads.output.worker_output import write_whole

_POLL_S = 0.005


def write_model(path: Path, model: nn.Module) -> None:
    """Write the parameters and buffers of a model, in the order in which the model lists them."""
    write_whole(path, b"".join(_to_bytes(tensor) for tensor in _list_tensors(model)))


def read_model(path: Path, model: nn.Module, rank: int) -> None:
    """Wait for the file of `write_model`, and give a model the parameters and buffers in it.

    Args:
        path: the file, which rank 0 writes.
        model: model to change; it must have the same structure.
        rank: rank that has built this model.

    Raises:
        InputError: the file belongs to a model of another size.
    """
    while not path.exists():
        time.sleep(_POLL_S)
    content = path.read_bytes()
    tensors = _list_tensors(model)
    needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if needed != len(content):
        raise InputError(
            f"rank {rank} built a model of {needed} bytes, but rank 0 built one of"
            f" {len(content)} bytes; all ranks must build the same model — build the model only"
            " from the arguments that Laggard passes"
        )
    offset = 0
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        if size:
            part = torch.frombuffer(bytearray(content[offset : offset + size]), dtype=tensor.dtype)
            tensor.copy_(part.view(tensor.shape))
        offset += size


def _list_tensors(model: nn.Module) -> list[torch.Tensor]:
    return [tensor.detach() for tensor in (*model.parameters(), *model.buffers())]


def _to_bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
