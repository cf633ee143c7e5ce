"""Clocks that wait until a device has finished its work.

A CUDA kernel is launched by a call that returns at once, so the instant of the return says nothing.
The end of a phase is the instant at which the host has seen an event that was recorded on the
compute stream there. Nothing else is waited for: collectives run on streams of their own, so DDP's
all-reduce of one bucket goes on under the backward pass of the next.

A kernel on the processor has run when the call returns; its clock costs an empty call.
"""

from __future__ import annotations

from typing import Protocol

import torch


class DeviceClock(Protocol):
    """Makes the host's clock tell when a device's work was done."""

    def synchronize(self) -> None:
        """Return once the device has computed all that it was told to; what it communicates goes
        on.
        """


class HostClock:
    """Clock of the processor."""

    def synchronize(self) -> None:
        """Nothing is pending."""


class CudaClock:
    """Of one GPU, for what is computed on the stream that is current now.

    Args:
        device: the GPU; CUDA is initialised with it.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)
        # Blocking: a wait that spins would take a limited host's share from the threads that
        # communicate.
        # Torch leaves it unannotated.
        self._event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    def synchronize(self) -> None:
        """Wait for the stream up to here; from whichever thread, as autograd's callbacks come from
        one of its own.
        """
        self._event.record(self._stream)
        self._event.synchronize()


def device_clock(device: torch.device) -> DeviceClock:
    """The clock of a device."""
    return CudaClock(device) if device.type == "cuda" else HostClock()
