"""When a backward pass has computed its last gradient, and when DDP broadcasts buffers; torch keeps
both to itself.

`backward()` returns only after the peers, so timing the call charges their lateness to an innocent
rank. A callback that the autograd engine runs when the pass is done, queued before DDP queues its
own, runs at the instant that DDP calls `backward_compute_time_end` (within microseconds: the tests
compare them), costs a twentieth of reading DDP's own log, is in our clock, and lets the heartbeat
tell who computes from who waits.

On CUDA all of this happens while kernels are launched, ahead of the device: autograd's own thread
makes the callback when it has launched the pass, on the stream that the pass was computed on and
before DDP makes that stream wait for the collectives. Who wants to know when the device had its
last gradient settles the device's clock there (device_clock.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket


def on_backward_computed(loss: torch.Tensor, callback: Callable[[], None]) -> None:
    """Call `callback` once, when the backward pass from `loss` has computed its gradients and
    before it waits for peers.
    """
    engine = torch.autograd.Variable._execution_engine  # noqa: SLF001 - nothing public tells

    def queue(_: torch.Tensor) -> None:
        engine.queue_callback(callback)

    loss.register_hook(queue)  # type: ignore[no-untyped-call] # torch leaves it unannotated


class BroadcastListener(Protocol):
    """Is told of DDP's buffer broadcasts."""

    def broadcast_begins(self) -> None:
        """This rank arrives at the broadcast."""

    def broadcast_ends(self) -> None:
        """This rank has the buffers."""


class ObservedDDP(DistributedDataParallel):
    """DDP that tells when it broadcasts the buffers of BatchNorm, which it does within `forward`;
    nothing else is changed.
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
    """Bytes of the buffers that DDP broadcasts in every forward pass; 0 when it broadcasts none."""
    return sum(buffer.numel() * buffer.element_size() for buffer in ddp.module.buffers())


class BucketListener(Protocol):
    """Is told of gradient buckets."""

    def bucket(self, start_ns: int, end_ns: int, payload_bytes: int) -> None:
        """A bucket was reduced."""


class BucketHook(Protocol):
    """Averages gradient buckets (`workloads/compress/ddp_hooks.py`).

    Attributes:
        sent_bytes: of all buckets so far.
    """

    sent_bytes: int

    def reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Begin; the future's value is the bucket's mean."""


def have_buckets_reduced(
    ddp: DistributedDataParallel,
    by: BucketHook,
    listener: BucketListener | None,
    clock: Callable[[], int],
) -> None:
    """Have DDP average its buckets by a communication hook, and tell of every bucket.

    This is the host's view. Gloo's futures end when a bucket is reduced. NCCL's end when it is
    launched, so that with NCCL the spans would say nothing, and with CUDA tensors over gloo they
    begin when the host, ahead of the device, hands a bucket over.

    Args:
        ddp: whose buckets.
        by: what averages them.
        listener: told from gloo's threads; None where nobody wants to know.
        clock: nanoseconds.
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

    # DDP compares these with its classes, and postponed annotations are text.
    hook.__annotations__ = {"bucket": GradBucket, "return": torch.futures.Future[torch.Tensor]}
    ddp.register_comm_hook(None, hook)
