"""How ranks that train by themselves meet when what they send is compressed: they send what they
have moved since they last agreed.
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
    """The mean of some ranks' moves, compressed with error feedback, and of their buffers, which
    are few and stay whole.

    Vectors are moves, then buffers (see `FlatState`). All members end with the same bits.

    Args:
        codec: of the moves.
        context: of this rank.
        delta_count: how many of a vector's numbers are moves.
        synchronize: waits for the device.
        members: number of ranks that meet.
        group: torch's; all ranks when absent.
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
        """Exchange and decode.

        Args:
            vector: this rank's.
            number: of the collective within the step.
        """
        return self.decode(*self.exchange(vector, number))

    def exchange(self, vector: torch.Tensor, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What all members have sent, encoded, and the mean of their buffers; the same on each."""
        import torch.distributed as dist

        from laggard.workloads.compress.codec import count_tensor_bytes

        sent, buffers = (
            self._mean.encode(vector[: self._delta_count]),
            vector[self._delta_count :] / self._members,
        )
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
        """Room for what `exchange` returns, for a vector such as this."""
        import torch

        return self._mean.allocate_exchange(vector[: self._delta_count]), torch.empty_like(
            vector[self._delta_count :]
        )

    def decode(self, exchanged: torch.Tensor, buffers: torch.Tensor) -> torch.Tensor:
        """The mean vector."""
        import torch

        self._context.recorder.enter(Phase.OPTIMIZER)
        like = torch.empty(self._delta_count, dtype=buffers.dtype, device=buffers.device)
        return torch.cat([self._mean.decode(exchanged, like), buffers])
