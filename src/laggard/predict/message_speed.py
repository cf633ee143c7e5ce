"""Processor time that this machine spends on messages and on a server's updates."""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from laggard.core.cost_model.message_handling import MessageHandling

if TYPE_CHECKING:
    import torch
    from torch import nn, optim
    from torch._C._distributed_c10d import ProcessGroupGloo

    from laggard.workloads.transport.endpoint import Endpoint

_REPEATS = 12
_SMALL, _LARGE = 256, 500_000
"""Numbers of a small and of a large message; the line through both has the cost of a message of no
size. The large one is larger than the caches of a core."""

_RING = 8
"""Ranks of the measured all-reduce; with fewer, a rank sleeps and wakes for every part."""

_RING_REPEATS = 40

_TIMEOUT_S = 30.0
_POLL_S = 0.001
_DOOR, _KIND = 0, 1
_LOOPBACK = "127.0.0.1"


def measure_message_handling(model: nn.Module, optimizer: optim.Optimizer) -> MessageHandling:
    """Measure sending and receiving, a part of an all-reduce, and an update of a model.

    All ends are in this process and exchange messages over the loopback interface, so the processor
    time of the process belongs to all of them equally.

    Args:
        model: model to update; its gradients must be set.
        optimizer: optimizer of the model. It changes the model.
    """
    megabytes = sum(each.numel() * each.element_size() for each in model.parameters()) / 1e6
    small_s, large_s = _measure_messages()
    packing_s_per_mb = max(large_s - small_s, 0.0) / ((_LARGE - _SMALL) * 4e-6)
    return MessageHandling(
        packing_s_per_mb=packing_s_per_mb,
        applying_s_per_mb=_usual_s(partial(_update_s, optimizer)) / megabytes,
        fixed_s=max(small_s - packing_s_per_mb * _SMALL * 4e-6, 0.0),
        ring_part_s=_measure_ring_part_s(),
        cold_caches=True,
    )


def _measure_messages() -> tuple[float, float]:
    """Return the processor seconds of one side of a small and of a large message."""
    import torch

    from laggard.workloads.transport.endpoint import Endpoint
    from laggard.workloads.transport.keys import make_endpoints

    address = _find_free_address()
    listening, calling = make_endpoints((address, address), _TIMEOUT_S)
    with Endpoint(listening, listens=True) as door, Endpoint(calling) as caller:
        caller.connect(_DOOR)
        small_s, large_s = (
            _usual_s(partial(_exchange_s, caller, door, torch.ones(count)))
            for count in (_SMALL, _LARGE)
        )
    return small_s / 2, large_s / 2


def _usual_s(measure: Callable[[], float]) -> float:
    """Return the lower quartile of repeated measurements; other programs only lengthen them."""
    return statistics.quantiles((measure() for _ in range(_REPEATS)), n=4)[0]


def _exchange_s(caller: Endpoint, door: Endpoint, tensor: torch.Tensor) -> float:
    """Return the processor seconds in which one message is sent, received and acknowledged."""
    from laggard.workloads.transport.frames import Message

    began_s = time.process_time()
    number = caller.send(_DOOR, Message(_KIND, tensor=tensor))
    door.receive()
    until_s = time.monotonic() + _TIMEOUT_S
    while not caller.acknowledged(_DOOR, number) and time.monotonic() < until_s:
        caller.take(_POLL_S)
    return time.process_time() - began_s


def _update_s(optimizer: optim.Optimizer) -> float:
    began_s = time.thread_time()
    optimizer.step()
    return time.thread_time() - began_s


def _measure_ring_part_s() -> float:
    """Return the processor seconds of a rank for one part of gloo's all-reduce."""
    import torch
    from torch._C._distributed_c10d import HashStore, ProcessGroupGloo

    store = HashStore()

    def join(rank: int) -> ProcessGroupGloo:
        # torch's stubs leave out its options, which have no public constructor.
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # noqa: SLF001
        options._devices = [ProcessGroupGloo.create_device(hostname=_LOOPBACK)]  # noqa: SLF001
        options._timeout = timedelta(seconds=_TIMEOUT_S)  # noqa: SLF001
        return ProcessGroupGloo(store, rank, _RING, options)

    with ThreadPoolExecutor(_RING) as threads:
        groups = tuple(threads.map(join, range(_RING)))
    tensors = [torch.zeros(_SMALL * _RING) for _ in groups]
    # Repeats differ by a factor of two. The least one fits recorded runs best; a reason may be that
    # the ranks are threads here and contend for cores (benchmarks/splits.md).
    least_s = min(_all_reduce_s(groups, tensors) for _ in range(_RING_REPEATS))
    return least_s / _RING / (2 * (_RING - 1))


def _all_reduce_s(groups: Sequence[ProcessGroupGloo], tensors: Sequence[torch.Tensor]) -> float:
    began_s = time.process_time()
    works = [
        group.allreduce([tensor])  # type: ignore[attr-defined]
        for group, tensor in zip(groups, tensors, strict=True)
    ]
    for work in works:
        work.wait()
    return time.process_time() - began_s


def _find_free_address() -> str:
    with socket.create_server((_LOOPBACK, 0)) as server:
        return f"{_LOOPBACK}:{server.getsockname()[1]}"
