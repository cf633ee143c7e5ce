"""Clocks that wait until a device has finished its work.

A call launches a CUDA kernel and returns at once, so the time of the return means nothing. A phase
ends when the host has seen an event that was recorded on the compute stream at the phase's end.
Nothing else is waited for: collectives run on their own streams, so DDP's all-reduce of one bucket
continues during the backward pass of the next.

On the CPU, the computation is done when the call returns. Its clock costs one empty call.
"""

from __future__ import annotations

from typing import Protocol

import torch


class DeviceClock(Protocol):
    """Clock that reads the time only after the device's work is done."""

    def synchronize(self) -> None:
        """Return when the device has computed everything; its communication may continue."""


class HostClock:
    """Clock of the CPU."""

    def synchronize(self) -> None:
        """Return at once, since nothing is pending."""


class CudaClock:
    """Clock of one GPU, for the computation on the current stream.

    Args:
        device: the GPU; CUDA is initialized with it.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)
        # A blocking event, because a spinning wait would take a limited host's share from the
        # threads that communicate. The constructor has no type annotations.
        self._event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    def synchronize(self) -> None:
        """Wait for the stream up to this point.

        Any thread may call this, since autograd's callbacks come from a thread of its own.
        """
        self._event.record(self._stream)
        self._event.synchronize()


def device_clock(device: torch.device) -> DeviceClock:
    """Return the clock of a device."""
    return CudaClock(device) if device.type == "cuda" else HostClock()
