"""Gradients and buffers as the one tensor of a message: the gradients compressed, the buffers as
they are.
"""

from __future__ import annotations

import torch

from laggard.workloads.compress.codec import Codec


class GradientPacker:
    """Packs vectors of gradients, then buffers (see `FlatState`): BatchNorm's few statistics are no
    gradients, and stay whole.

    Args:
        codec: of the gradients; the sender's remembers what it left out.
        gradients: how many of a vector's numbers are gradients.
        like: a vector of this kind.
    """

    def __init__(self, codec: Codec, gradients: int, like: torch.Tensor) -> None:
        self._codec, self._gradients = codec, gradients
        self._like = torch.empty_like(like)

    def pack(self, vector: torch.Tensor) -> torch.Tensor:
        """Bytes: buffers, then the payload of the gradients."""
        payload = self._codec.encode(vector[: self._gradients])
        return torch.cat([vector[self._gradients :].view(torch.uint8), payload.view(torch.uint8)])

    def unpack(self, packed: torch.Tensor) -> torch.Tensor:
        """The vector, of what was sent of it."""
        gradients, buffers = self._like[: self._gradients], self._like[self._gradients :]
        split = buffers.numel() * buffers.element_size()
        payload = packed[split:].view(self._codec.allocate_payload(gradients).dtype)
        return torch.cat(
            [self._codec.decode(payload, gradients), packed[:split].view(buffers.dtype)]
        )
