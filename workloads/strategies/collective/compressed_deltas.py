"""Compressed averages of ranks that train on their own.

Ranks send how far their parameters have moved since the last average (the deltas), not the
parameters themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from laggard.core.span_schema import Phase

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from laggard.workloads.compress.codec import Codec
    from laggard.workloads.strategies.base.strategy import TrainingContext


class CompressedDeltaAverage:
    """Mean of the deltas of some ranks, compressed with error feedback.

    Buffers are few and are averaged without compression. Vectors contain deltas, then buffers (see
    `FlatState`). All members get the same bits.

    Args:
        codec: codec of the deltas.
        context: training context of the rank.
        delta_count: number of deltas in a vector.
        synchronize: function that waits for the device.
        members: number of ranks that are averaged.
        group: process group of torch; all ranks when absent.
    """

    def __init__(
        self,
        codec: Codec,
        context: TrainingContext,
        delta_count: int,
        synchronize: Callable[[], None],
        members: int,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        from laggard.workloads.compress.compressed_mean import CompressedMean

        self._mean = CompressedMean(codec, members, group)
        self._context, self._delta_count, self._synchronize = context, delta_count, synchronize
        self._members, self._group = members, group

    def mean(self, vector: torch.Tensor, number: int) -> torch.Tensor:
        """Exchange the vectors of all members and return their mean.

        Args:
            vector: vector of this rank.
            number: number of the collective within the step.
        """
        return self.decode(*self.exchange(vector, number))

    def exchange(self, vector: torch.Tensor, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Exchange the vectors of all members without decoding them.

        Args:
            vector: vector of this rank.
            number: number of the collective within the step.

        Returns:
            The encoded deltas of all members and the mean of their buffers; both are the same on
            each member.
        """
        import torch.distributed as dist

        from laggard.workloads.compress.codec import count_tensor_bytes

        sent, buffers = (
            self._mean.encode(vector[: self._delta_count]),
            vector[self._delta_count :] / self._members,
        )
        # Encoding on a device must end before the communication phase begins.
        self._synchronize()
        self._context.recorder.enter(
            Phase.COMM,
            group=number,
            payload_bytes=count_tensor_bytes(sent) + count_tensor_bytes(buffers),
        )
        exchanged = self._mean.exchange(sent)
        if buffers.numel():
            dist.all_reduce(buffers, group=self._group)
        self._synchronize()
        return exchanged, buffers

    def allocate_exchange(self, vector: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Allocate the tensors that `exchange` returns for such a vector."""
        import torch

        return self._mean.allocate_exchange(vector[: self._delta_count]), torch.empty_like(
            vector[self._delta_count :]
        )

    def decode(self, exchanged: torch.Tensor, buffers: torch.Tensor) -> torch.Tensor:
        """Return the mean vector from the tensors that `exchange` returned."""
        import torch

        self._context.recorder.enter(Phase.OPTIMIZER)
        like = torch.empty(self._delta_count, dtype=buffers.dtype, device=buffers.device)
        return torch.cat([self._mean.decode(exchanged, like), buffers])
