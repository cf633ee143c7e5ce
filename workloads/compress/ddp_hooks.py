"""Compression of gradients in DistributedDataParallel: communication hooks that count bytes.

They use torch's own hooks if it has them. DDP calls a hook when the backward pass has filled a
bucket. Encoding happens before the hook returns and is therefore part of the backward pass;
decoding happens in its future and is part of the communication. Bytes are those of the tensors
that this rank gives to collectives: a vector for an all-reduce, its own part for an all-gather.
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
"""Bucket size in MiB that holds any model."""
EPSILON = 1e-8
"""Regularization that torch recommends for columns of zeros, which dead layers cause."""


class UncompressedHook:
    """Hook that averages uncompressed gradients, as DDP does by default."""

    def __init__(self) -> None:
        self.sent_bytes = 0

    def reduce(self, bucket: GradBucket) -> Reduced:
        """See `BucketHook`."""
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        self.sent_bytes += count_tensor_bytes(bucket.buffer())
        return allreduce_hook(_get_default_group(), bucket)


class HalfPrecisionHook:
    """Hook for half precision without error feedback: torch's `fp16_compress_hook`."""

    def __init__(self) -> None:
        self.sent_bytes = 0

    def reduce(self, bucket: GradBucket) -> Reduced:
        """See `BucketHook`."""
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        self.sent_bytes += bucket.buffer().numel() * torch.float16.itemsize
        return fp16_compress_hook(_get_default_group(), bucket)


class PowerSGDHook:
    """Hook for PowerSGD with error feedback and warm start: torch's `powerSGD_hook`.

    T. Vogels, S. P. Karimireddy, M. Jaggi, "PowerSGD", NeurIPS 2019.

    The hook starts collectives from the callbacks of earlier ones. With several buckets, ranks
    could start them in different orders, and gloo would mix them up. DDP must therefore have one
    bucket (`bucket_cap_mb`).
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
            # Before this iteration torch's hook averages uncompressed gradients and counts
            # nothing.
            self._state.iter >= self._state.start_powerSGD_iter,
            self._state.total_numel_after_compression,
        )
        buffer = bucket.buffer()
        reduced = powerSGD_hook(self._state, bucket)
        numbers = self._state.total_numel_after_compression - before if begun else buffer.numel()
        self.sent_bytes += numbers * buffer.element_size()
        return reduced


class TopKHook:
    """Hook that sends the largest numbers of every bucket, with error feedback, by all-gather.

    The residual is stored by parameter, since DDP rearranges its buckets after the first step.
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
            gathered.value()  # raises if the collective failed
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
    """Create the hook that `workload.yaml` asks for; torch's default process group must be open."""
    if isinstance(compression, PowerSGDParameters):
        return PowerSGDHook(compression)
    if isinstance(compression, TopKParameters):
        return TopKHook(compression)
    return UncompressedHook() if compression is None else HalfPrecisionHook()


def bucket_cap_mb(compression: Compression | None) -> int | None:
    """Return the size limit of DDP's buckets in MiB; None for DDP's default."""
    return WHOLE_MODEL_MB if isinstance(compression, PowerSGDParameters) else None


def _get_default_group() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group
