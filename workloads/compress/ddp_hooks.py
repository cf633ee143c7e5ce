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

from laggard.workloads.compress.codec import ErrorFeedbackCodec, TopKCodec, count_tensor_bytes
from laggard.workloads.compress.compressed_mean import sum_payloads
from laggard.workloads.compress.parameters import Compression, PowerSGDParameters, TopKParameters
from laggard.workloads.tracing.ddp_timing import BucketHook

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket

Reduced = torch.futures.Future[torch.Tensor]

WHOLE_MODEL_MB = 1 << 20
EPSILON = 1e-8
"""What torch advises against columns of zeros, which layers that have died leave."""


class UncompressedHook:
    """Hook that averages as DDP does by default."""

    def __init__(self) -> None:
        self.sent_bytes = 0

    def reduce(self, bucket: GradBucket) -> Reduced:
        """See `BucketHook`."""
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        self.sent_bytes += count_tensor_bytes(bucket.buffer())
        return allreduce_hook(_get_default_group(), bucket)


class HalfPrecisionHook:
    """Half precision, without error feedback: torch's `fp16_compress_hook`."""

    def __init__(self) -> None:
        self.sent_bytes = 0

    def reduce(self, bucket: GradBucket) -> Reduced:
        """See `BucketHook`."""
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        self.sent_bytes += bucket.buffer().numel() * torch.float16.itemsize
        return fp16_compress_hook(_get_default_group(), bucket)


class PowerSGDHook:
    """T. Vogels, S. P. Karimireddy, M. Jaggi, "PowerSGD", NeurIPS 2019: torch's `powerSGD_hook`,
    its error feedback and warm start on.

    It begins collectives from within those before, so that with several buckets ranks could begin
    them in different orders, and gloo would mix them up: DDP is to have one bucket
    (`bucket_cap_mb`).
    """

    def __init__(self, compression: PowerSGDParameters) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

        self.sent_bytes = 0
        self._state = PowerSGDState(
            _get_default_group(),
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

    def __init__(self, compression: TopKParameters) -> None:
        self.sent_bytes = 0
        self._codec = TopKCodec(compression.fraction)
        self._residuals: dict[torch.Tensor, torch.Tensor] = {}

    def reduce(self, bucket: GradBucket) -> Reduced:
        """See `BucketHook`."""
        group = _get_default_group()
        buffer, members = bucket.buffer(), group.size()
        payload = self._encode(buffer / members, bucket.parameters())
        payloads = payload.new_empty(members * payload.numel())
        self.sent_bytes += count_tensor_bytes(payload)

        def decode(gathered: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            gathered.value()  # or a failure would go unnoticed
            return buffer.copy_(sum_payloads(self._codec, payloads, members, buffer))

        work = dist.all_gather_into_tensor(payloads, payload, group=group, async_op=True)
        assert work is not None
        reducing: Reduced = work.get_future().then(decode)
        return reducing

    def _encode(self, values: torch.Tensor, parameters: list[torch.Tensor]) -> torch.Tensor:
        error_feedback = ErrorFeedbackCodec(self._codec)
        if parameters[0] in self._residuals:
            error_feedback.residual = torch.cat(
                [self._residuals[parameter] for parameter in parameters]
            )
        payload = error_feedback.encode(values)
        assert error_feedback.residual is not None
        residuals = torch.split_with_sizes(
            error_feedback.residual, [parameter.numel() for parameter in parameters]
        )
        self._residuals.update(zip(parameters, residuals, strict=True))
        return payload


def create_bucket_hook(compression: Compression | None) -> BucketHook:
    """The hook that `workload.yaml` asks for; torch's default process group must be open."""
    if isinstance(compression, PowerSGDParameters):
        return PowerSGDHook(compression)
    if isinstance(compression, TopKParameters):
        return TopKHook(compression)
    return UncompressedHook() if compression is None else HalfPrecisionHook()


def bucket_cap_mb(compression: Compression | None) -> int | None:
    """How large DDP's buckets may be, in MiB; None for what it chooses."""
    return WHOLE_MODEL_MB if isinstance(compression, PowerSGDParameters) else None


def _get_default_group() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group
