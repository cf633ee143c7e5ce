"""Compressed gradients within DistributedDataParallel: communication hooks, of torch where it has
them, that count what they send.

DDP calls a hook when the backward pass has filled a bucket. What the hook does before it returns
(encoding) is therefore part of the backward pass, and what its future does (decoding) part of the
communication. Bytes are those of the tensors that this rank hands to collectives: a vector for an
all-reduce, its own part for an all-gather.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from laggard.workloads.compress.averaging import summed
from laggard.workloads.compress.codec import Largest, Remembering, size_bytes
from laggard.workloads.compress.parameters import Compression, PowerSGD, TopK
from laggard.workloads.tracing.ddp_timing import BucketHook

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket

Reduced = torch.futures.Future[torch.Tensor]

WHOLE_MODEL_MB = 1 << 20
EPSILON = 1e-8
"""What torch advises against columns of zeros, which layers that have died leave."""


class Whole:
    """As DDP does by default."""

    def __init__(self) -> None:
        self.sent_bytes = 0

    def reduce(self, bucket: GradBucket) -> Reduced:
        """See `BucketHook`."""
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        self.sent_bytes += size_bytes(bucket.buffer())
        return allreduce_hook(_everybody(), bucket)


class HalfHook:
    """Half precision, without error feedback: torch's `fp16_compress_hook`."""

    def __init__(self) -> None:
        self.sent_bytes = 0

    def reduce(self, bucket: GradBucket) -> Reduced:
        """See `BucketHook`."""
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        self.sent_bytes += bucket.buffer().numel() * torch.float16.itemsize
        return fp16_compress_hook(_everybody(), bucket)


class PowerSGDHook:
    """T. Vogels, S. P. Karimireddy, M. Jaggi, "PowerSGD", NeurIPS 2019: torch's `powerSGD_hook`,
    its error feedback and warm start on.

    It begins collectives from within those before, so that with several buckets ranks could begin
    them in different orders, and gloo would mix them up: DDP is to have one bucket
    (`bucket_cap_mb`).
    """

    def __init__(self, compression: PowerSGD) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

        self.sent_bytes = 0
        self._state = PowerSGDState(
            _everybody(),
            matrix_approximation_rank=compression.rank,
            start_powerSGD_iter=compression.after,
            orthogonalization_epsilon=EPSILON,
        )

    def reduce(self, bucket: GradBucket) -> Reduced:
        """See `BucketHook`."""
        from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import powerSGD_hook

        begun, before = (
            self._state.iter >= self._state.start_powerSGD_iter,
            self._state.total_numel_after_compression,
        )
        buffer = bucket.buffer()
        reduced = powerSGD_hook(self._state, bucket)
        numbers = self._state.total_numel_after_compression - before if begun else buffer.numel()
        self.sent_bytes += numbers * buffer.element_size()
        return reduced


class TopKHook:
    """The largest numbers of every bucket, with error feedback, exchanged by all-gather.

    What is left out is remembered by parameter, since DDP rearranges its buckets after the first
    step.
    """

    def __init__(self, compression: TopK) -> None:
        self.sent_bytes = 0
        self._codec = Largest(compression.fraction)
        self._rests: dict[torch.Tensor, torch.Tensor] = {}

    def reduce(self, bucket: GradBucket) -> Reduced:
        """See `BucketHook`."""
        group = _everybody()
        buffer, members = bucket.buffer(), group.size()
        payload = self._encode(buffer / members, bucket.parameters())
        everybodys = payload.new_empty(members * payload.numel())
        self.sent_bytes += size_bytes(payload)

        def decode(gathered: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            gathered.value()  # or a failure would go unnoticed
            return buffer.copy_(summed(self._codec, everybodys, members, buffer))

        work = dist.all_gather_into_tensor(everybodys, payload, group=group, async_op=True)
        assert work is not None
        reducing: Reduced = work.get_future().then(decode)
        return reducing

    def _encode(self, values: torch.Tensor, parameters: list[torch.Tensor]) -> torch.Tensor:
        remembering = Remembering(self._codec)
        if parameters[0] in self._rests:
            remembering.rest = torch.cat([self._rests[parameter] for parameter in parameters])
        payload = remembering.encode(values)
        assert remembering.rest is not None
        rests = torch.split_with_sizes(
            remembering.rest, [parameter.numel() for parameter in parameters]
        )
        self._rests.update(zip(parameters, rests, strict=True))
        return payload


def bucket_hook(compression: Compression | None) -> BucketHook:
    """The hook that `workload.yaml` asks for; torch's default process group must be open."""
    if isinstance(compression, PowerSGD):
        return PowerSGDHook(compression)
    if isinstance(compression, TopK):
        return TopKHook(compression)
    return Whole() if compression is None else HalfHook()


def bucket_cap_mb(compression: Compression | None) -> int | None:
    """How large DDP's buckets may be, in MiB; None for what it chooses."""
    return WHOLE_MODEL_MB if isinstance(compression, PowerSGD) else None


def _everybody() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group
