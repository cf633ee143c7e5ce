"""The mean of several ranks' vectors, exchanged in compressed form, the same bits on all of
them.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from laggard.workloads.compress.codec import Codec, ErrorFeedbackCodec


class CompressedMean:
    """Payloads that can be summed travel by all-reduce, others by all-gather; what a rank leaves
    out it sends later.

    Args:
        codec: how vectors are encoded.
        members: number of ranks of the group.
        group: torch's; all ranks when absent.
    """

    def __init__(self, codec: Codec, members: int, group: dist.ProcessGroup | None = None) -> None:
        self._codec, self._members, self._group = ErrorFeedbackCodec(codec), members, group

    def encode(self, vector: torch.Tensor) -> torch.Tensor:
        """Encode this rank's vector."""
        return self._codec.encode(vector / self._members)

    def exchange(self, sent: torch.Tensor) -> torch.Tensor:
        """Exchange the encoded vectors of all ranks of the group."""
        if self._codec.summable:
            dist.all_reduce(sent, group=self._group)
            return sent
        payloads = sent.new_empty(self._members * sent.numel())
        dist.all_gather_into_tensor(payloads, sent, group=self._group)
        return payloads

    def allocate_exchange(self, like: torch.Tensor) -> torch.Tensor:
        """Room for what `exchange` returns, for vectors such as `like`."""
        payload = self._codec.allocate_payload(like)
        return (
            payload if self._codec.summable else payload.new_empty(self._members * payload.numel())
        )

    def decode(self, exchanged: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """The mean of the vectors, as far as they were sent; added up by rank."""
        return sum_payloads(self._codec, exchanged, self._members, like)


def sum_payloads(
    codec: Codec, exchanged: torch.Tensor, members: int, like: torch.Tensor
) -> torch.Tensor:
    """The sum of what so many ranks sent, exchanged by all-reduce or all-gather as the codec
    allows.
    """
    if codec.summable:
        return codec.decode(exchanged, like)
    total = torch.zeros_like(like)
    for payload in exchanged.chunk(members):
        codec.add_decoded(payload, total)
    return total
