"""Mean of several ranks' vectors, exchanged in compressed form and bit-identical on all ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist

from laggard.workloads.compress.codec import Codec, ErrorFeedbackCodec


class CompressedMean:
    """Exchange of compressed vectors with error feedback.

    Summable payloads use an all-reduce, others an all-gather.

    Args:
        codec: codec of the vectors.
        members: number of ranks in the group.
        group: process group of torch; all ranks if None.
    """

    def __init__(self, codec: Codec, members: int, group: dist.ProcessGroup | None = None) -> None:
        self._codec, self._members, self._group = ErrorFeedbackCodec(codec), members, group

    def encode(self, vector: torch.Tensor) -> torch.Tensor:
        """Encode this rank's vector."""
        # Dividing before the exchange makes the sum of payloads the mean.
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
        """Allocate memory for the result of `exchange`, for vectors such as `like`."""
        payload = self._codec.allocate_payload(like)
        return (
            payload if self._codec.summable else payload.new_empty(self._members * payload.numel())
        )

    def decode(self, exchanged: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Return the mean of the decoded vectors, added up in rank order."""
        return sum_payloads(self._codec, exchanged, self._members, like)


def sum_payloads(
    codec: Codec, exchanged: torch.Tensor, members: int, like: torch.Tensor
) -> torch.Tensor:
    """Return the sum of the vectors of all members, after an all-reduce or an all-gather.

    Args:
        codec: codec that decides between all-reduce (summable) and all-gather.
        exchanged: result of the exchange.
        members: number of ranks in the group.
        like: vector with the shape and type of the result.
    """
    if codec.summable:
        return codec.decode(exchanged, like)
    total = torch.zeros_like(like)
    for payload in exchanged.chunk(members):
        codec.add_decoded(payload, total)
    return total
