"""Encoders of vectors: the payload that is sent, and the vector that its receiver decodes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from laggard.workloads.compress.parameters import Fp16Parameters, PowerSGDParameters, TopKParameters

_MAX_FLOAT16 = torch.finfo(torch.float16).max


class Codec(Protocol):
    """Encoder and decoder of vectors; both ends know the vector's length and type.

    Attributes:
        summable: whether the sum of payloads is the payload of the sum, so that an all-reduce can
            carry them.
    """

    @property
    def summable(self) -> bool: ...

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Return the payload of a vector, with one dimension and on the vector's device."""

    def decode(self, payload: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Return the vector of a payload, with the shape and type of `like`."""

    def add_decoded(self, payload: torch.Tensor, total: torch.Tensor) -> None:
        """Add the vector of a payload to `total`, at a cost proportional to the payload."""

    def allocate_payload(self, like: torch.Tensor) -> torch.Tensor:
        """Allocate memory for the payload of a vector with the shape and type of `like`."""


@dataclass(frozen=True)
class HalfPrecisionCodec:
    """Codec for half precision; numbers too large for it become the largest possible ones."""

    summable: bool = True

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Return the vector as float16, shape [n]."""
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
    """Return the indices of the largest magnitudes, in no order.

    On the CPU numpy finds them, in a third of torch's time.
    """
    others = magnitudes.numel() - count
    if magnitudes.device.type != "cpu" or not others:
        return magnitudes.topk(count, sorted=False).indices
    return torch.from_numpy(np.argpartition(magnitudes.numpy(), others)[others:])


@dataclass(frozen=True)
class TopKCodec:
    """Codec that sends the k largest numbers by magnitude and their positions.

    The payload has the bytes of k numbers, then those of k 32-bit integers.

    S. U. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with memory", NeurIPS 2018: the
    operator top_k.

    Attributes:
        fraction: k = ceil(fraction * n) numbers of n are sent, but at least one.
    """

    fraction: float
    summable: bool = False

    def count(self, length: int) -> int:
        """Return the number of values of a vector of this length that are sent."""
        # 7 % of 100 must be 7, although the double 0.07 is slightly more than 7 %, which would
        # round up to 8.
        return min(length, max(1, math.ceil(self.fraction * length * (1 - 1e-12))))

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Return the payload as uint8, shape [k * (bytes of a number + 4)]."""
        indices = _find_topk_indices(values.detach().abs(), self.count(values.numel()))
        return torch.cat([values[indices].view(torch.uint8), indices.int().view(torch.uint8)])

    def decode(self, payload: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """See `Codec`; numbers that were not sent are zero."""
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
    """Codec with error feedback: it adds what a payload leaves out to the next vector.

    Stich et al., NeurIPS 2018, algorithm 1; Y. Lin et al., "Deep Gradient Compression", ICLR 2018,
    section 3.

    Args:
        codec: codec of the vectors.

    Attributes:
        residual: sum left out so far; None before the first vector.
    """

    def __init__(self, codec: Codec) -> None:
        self.residual: torch.Tensor | None = None
        self._codec = codec

    @property
    def summable(self) -> bool:
        """See `Codec`."""
        return self._codec.summable

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Return the payload of this vector plus the residual of the earlier ones."""
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
    """Create the codec of vectors that `workload.yaml` asks for."""
    return (
        TopKCodec(compression.fraction)
        if isinstance(compression, TopKParameters)
        else HalfPrecisionCodec()
    )


def create_vector_codec(
    compression: Fp16Parameters | TopKParameters | PowerSGDParameters | None,
) -> Codec | None:
    """Create the codec of vectors, or return None if there is none.

    PowerSGD has no codec of vectors, since it compresses matrices.
    """
    return (
        None
        if compression is None or isinstance(compression, PowerSGDParameters)
        else create_codec(compression)
    )


def count_tensor_bytes(tensor: torch.Tensor) -> int:
    """Return the size of a tensor in bytes."""
    return tensor.numel() * tensor.element_size()
