"""Encoders of vectors: what is sent, and what its receiver makes of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from laggard.workloads.compress.parameters import Fp16Parameters, PowerSGDParameters, TopKParameters

_MAX_FLOAT16 = torch.finfo(torch.float16).max


class Codec(Protocol):
    """A vector as a payload, and back; both ends know the vector's length and type.

    Attributes:
        summable: whether the sum of payloads is the payload of the sum, so that an all-reduce may
            carry them.
    """

    @property
    def summable(self) -> bool: ...

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """The payload of a vector, of one dimension and on its device."""

    def decode(self, payload: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """A vector such as `like` from a payload."""

    def add_decoded(self, payload: torch.Tensor, total: torch.Tensor) -> None:
        """Add the vector that a payload stands for to `total`, at the cost of what was sent of
        it.
        """

    def allocate_payload(self, like: torch.Tensor) -> torch.Tensor:
        """Room for the payload of a vector such as `like`."""


@dataclass(frozen=True)
class HalfPrecisionCodec:
    """Half precision; what is too large for it becomes the largest that there is."""

    summable: bool = True

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Float16, shape [n]."""
        return values.clamp(-_MAX_FLOAT16, _MAX_FLOAT16).half()

    def decode(self, payload: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """See `Codec`."""
        return payload.to(like.dtype)

    def add_decoded(self, payload: torch.Tensor, total: torch.Tensor) -> None:
        """See `Codec`."""
        total += payload

    def allocate_payload(self, like: torch.Tensor) -> torch.Tensor:
        """See `Codec`."""
        return torch.empty(like.numel(), dtype=torch.float16, device=like.device)


def _find_topk_indices(magnitudes: torch.Tensor, count: int) -> torch.Tensor:
    """Find the indices in no order; on a processor by numpy, which takes a third of torch's
    time.
    """
    others = magnitudes.numel() - count
    if magnitudes.device.type != "cpu" or not others:
        return magnitudes.topk(count, sorted=False).indices
    return torch.from_numpy(np.argpartition(magnitudes.numpy(), others)[others:])


@dataclass(frozen=True)
class TopKCodec:
    """The largest numbers by magnitude, then their places: bytes, of k numbers and of k whole
    numbers of 32 bits.

    S. U. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with memory", NeurIPS 2018: the
    operator top_k.

    Attributes:
        fraction: k = ceil(fraction * n) numbers of n are sent, and one at least.
    """

    fraction: float
    summable: bool = False

    def count(self, length: int) -> int:
        """Count the numbers of a vector of this length that are sent."""
        # What is meant by 7 % of 100 is 7, and not 8 since 0.07 is a little more than that.
        return min(length, max(1, math.ceil(self.fraction * length * (1 - 1e-12))))

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Uint8, shape [k * (bytes of a number + 4)]."""
        indices = _find_topk_indices(values.detach().abs(), self.count(values.numel()))
        return torch.cat([values[indices].view(torch.uint8), indices.int().view(torch.uint8)])

    def decode(self, payload: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """See `Codec`; what was not sent is zero."""
        vector = torch.zeros_like(like)
        self.add_decoded(payload, vector)
        return vector

    def add_decoded(self, payload: torch.Tensor, total: torch.Tensor) -> None:
        """See `Codec`."""
        split = self.count(total.numel()) * total.element_size()
        total.index_add_(0, payload[split:].view(torch.int32), payload[:split].view(total.dtype))

    def allocate_payload(self, like: torch.Tensor) -> torch.Tensor:
        """See `Codec`."""
        size = self.count(like.numel()) * (like.element_size() + torch.int32.itemsize)
        return torch.empty(size, dtype=torch.uint8, device=like.device)


class ErrorFeedbackCodec:
    """A codec with error feedback: what a payload leaves out is added to the next vector.

    Stich et al., NeurIPS 2018, algorithm 1; Y. Lin et al., "Deep Gradient Compression", ICLR 2018,
    section 3.

    Args:
        codec: what encodes.

    Attributes:
        residual: what has been left out so far; None before the first vector.
    """

    def __init__(self, codec: Codec) -> None:
        self.residual: torch.Tensor | None = None
        self._codec = codec

    @property
    def summable(self) -> bool:
        """See `Codec`."""
        return self._codec.summable

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """The payload of this vector and the rest of those before."""
        whole = values if self.residual is None else values + self.residual
        payload = self._codec.encode(whole)
        self.residual = whole - self._codec.decode(payload, whole)
        return payload

    def decode(self, payload: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """See `Codec`."""
        return self._codec.decode(payload, like)

    def add_decoded(self, payload: torch.Tensor, total: torch.Tensor) -> None:
        """See `Codec`."""
        self._codec.add_decoded(payload, total)

    def allocate_payload(self, like: torch.Tensor) -> torch.Tensor:
        """See `Codec`."""
        return self._codec.allocate_payload(like)


def create_codec(compression: Fp16Parameters | TopKParameters) -> Codec:
    """The encoder that `workload.yaml` asks for."""
    return (
        TopKCodec(compression.fraction)
        if isinstance(compression, TopKParameters)
        else HalfPrecisionCodec()
    )


def create_vector_codec(
    compression: Fp16Parameters | TopKParameters | PowerSGDParameters | None,
) -> Codec | None:
    """The same, where vectors are what is compressed; PowerSGD takes matrices."""
    return (
        None
        if compression is None or isinstance(compression, PowerSGDParameters)
        else create_codec(compression)
    )


def count_tensor_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor as it is sent."""
    return tensor.numel() * tensor.element_size()
