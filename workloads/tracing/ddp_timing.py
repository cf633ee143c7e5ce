"""Times that torch does not report: end of a backward pass, DDP's buffer broadcasts and buckets.

`backward()` returns only after the peers, so timing the call would charge their lateness to an
innocent rank. Instead, the autograd engine runs a callback when the pass is done. It is queued
before DDP queues its own, so it runs when DDP calls `backward_compute_time_end` (within
microseconds: the tests compare them). The callback costs a twentieth of reading DDP's own log,
uses this process's clock, and lets the heartbeat distinguish a rank that computes from one that
waits.

On CUDA all of this happens while kernels are launched, ahead of the device. Autograd's own thread
makes the callback when it has launched the pass, on the stream of the pass and before DDP makes
that stream wait for the collectives. Synchronize with the device's clock there (device_clock.py)
to get the time at which the device had its last gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket


def on_backward_computed(loss: torch.Tensor, callback: Callable[[], None]) -> None:
    """Call `callback` once, when the backward pass from `loss` has computed its gradients.

    At that time the pass has not waited for peers yet.
    """
    engine = torch.autograd.Variable._execution_engine  # noqa: SLF001 - there is no public API

    def queue(_: torch.Tensor) -> None:
        engine.queue_callback(callback)

    loss.register_hook(queue)  # type: ignore[no-untyped-call] # torch leaves it unannotated


class BroadcastListener(Protocol):
    """Listener to DDP's buffer broadcasts."""

    def broadcast_begins(self) -> None:
        """Handle the arrival of this rank at the broadcast."""

    def broadcast_ends(self) -> None:
        """Handle the end of the broadcast: this rank has the buffers."""


class ObservedDDP(DistributedDataParallel):
    """DDP that reports its broadcasts of BatchNorm buffers, which happen within `forward`.

    Nothing else is changed.
    """

    listener: BroadcastListener | None = None

    def _sync_buffers(self) -> None:
        if self.listener is None:
            super()._sync_buffers()  # type: ignore[no-untyped-call] # torch leaves it unannotated
            return
        self.listener.broadcast_begins()
        super()._sync_buffers()  # type: ignore[no-untyped-call] # torch leaves it unannotated
        self.listener.broadcast_ends()


def broadcast_bytes(ddp: DistributedDataParallel) -> int:
    """Return the bytes of buffers that DDP broadcasts per forward pass; 0 if there are none."""
    return sum(buffer.numel() * buffer.element_size() for buffer in ddp.module.buffers())


class BucketListener(Protocol):
    """Listener to gradient buckets."""

    def bucket(self, start_ns: int, end_ns: int, payload_bytes: int) -> None:
        """Handle a bucket that was reduced."""


class BucketHook(Protocol):
    """Hook that averages gradient buckets (`workloads/compress/ddp_hooks.py`).

    Attributes:
        sent_bytes: bytes of all buckets so far.
    """

    sent_bytes: int

    def reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Begin to average a bucket; the future's value is the mean."""


def have_buckets_reduced(
    ddp: DistributedDataParallel,
    by: BucketHook,
    listener: BucketListener | None,
    clock: Callable[[], int],
) -> None:
    """Let DDP average its buckets by a communication hook, and report every bucket.

    The times are the host's view. Gloo's futures end when a bucket is reduced. NCCL's futures end
    when the operation is launched, so the spans would be meaningless with NCCL. With CUDA tensors
    over gloo, spans begin when the host, ahead of the device, hands a bucket over.

    Args:
        ddp: model whose buckets are averaged.
        by: hook that averages them.
        listener: listener, called from gloo's threads; None for no reports.
        clock: function that returns the time in ns.
    """
    from torch._C._distributed_c10d import GradBucket

    def hook(_: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        start_ns, before = clock(), by.sent_bytes
        reducing = by.reduce(bucket)
        if listener is None:
            return reducing
        payload_bytes = by.sent_bytes - before

        def reduced(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            listener.bucket(start_ns, clock(), payload_bytes)
            return future.value()

        return reducing.then(reduced)

    # DDP compares these annotations with its classes, and `from __future__ import annotations`
    # would have made them strings.
    hook.__annotations__ = {"bucket": GradBucket, "return": torch.futures.Future[torch.Tensor]}
    ddp.register_comm_hook(None, hook)
