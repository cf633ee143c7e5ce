"""Packing of compressed gradients and uncompressed buffers into the one tensor of a message."""

from __future__ import annotations

import torch

from laggard.workloads.compress.codec import Codec


class GradientPacker:
    """Packer of vectors that consist of gradients, then buffers (see `FlatState`).

    Buffers, such as BatchNorm's few statistics, are no gradients and stay uncompressed.

    Args:
        codec: codec of the gradients; the sender's has error feedback.
        gradients: number of gradients at the start of a vector.
        like: vector with the same shape and type.
    """

    def __init__(self, codec: Codec, gradients: int, like: torch.Tensor) -> None:
        self._codec, self._gradients = codec, gradients
        self._like = torch.empty_like(like)

    def pack(self, vector: torch.Tensor) -> torch.Tensor:
        """Return the packed bytes: buffers, then the payload of the gradients."""
        payload = self._codec.encode(vector[: self._gradients])
        return torch.cat([vector[self._gradients :].view(torch.uint8), payload.view(torch.uint8)])

    def unpack(self, packed: torch.Tensor) -> torch.Tensor:
        """Return the vector that the packed bytes decode to."""
        gradients, buffers = self._like[: self._gradients], self._like[self._gradients :]
        split = buffers.numel() * buffers.element_size()
        payload = packed[split:].view(self._codec.allocate_payload(gradients).dtype)
        return torch.cat(
            [self._codec.decode(payload, gradients), packed[:split].view(buffers.dtype)]
        )
