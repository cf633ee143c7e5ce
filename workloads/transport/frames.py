"""A message as bytes: a header of whole numbers, and perhaps one tensor as it lies in memory."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

ACKNOWLEDGEMENT = 0
"""The kind of the messages that the transport itself sends; strategies number theirs from 1."""

_HEADER = struct.Struct("<BbIqH")
_NONE = -1
_VALUES = tuple(struct.Struct(f"<{count}q") for count in range(17))


@dataclass(frozen=True)
class Message:
    """Message from one node to another.

    Attributes:
        kind: what it is, as the strategy numbers it, from 1.
        version: of the model that it carries or is about.
        values: further whole numbers, sixteen at most.
        tensor: of one dimension, in the host's memory.
        sender: the node that it came from, as its key proves.
        number: the sender's count of it.
    """

    kind: int
    version: int = 0
    values: tuple[int, ...] = ()
    tensor: torch.Tensor | None = None
    sender: int = -1
    number: int = 0

    @property
    def payload_bytes(self) -> int:
        """Bytes of the tensor."""
        return 0 if self.tensor is None else self.tensor.numel() * self.tensor.element_size()


def pack(message: Message, number: int) -> list[bytes | memoryview]:
    """The frames of a message; the tensor's memory is not copied, and must stay as it is until the
    message is acknowledged.
    """
    import torch

    tensor = message.tensor
    kind = _NONE if tensor is None else _list_tensor_types().index(tensor.dtype)
    header = _HEADER.pack(message.kind, kind, number, message.version, len(message.values))
    header += _VALUES[len(message.values)].pack(*message.values)
    if tensor is None:
        return [header]
    return [header, tensor.detach().contiguous().view(torch.uint8).numpy().data]


def unpack(header: bytes, payload: bytearray | memoryview | None, sender: int) -> Message:
    """Build the message that these frames encode."""
    import torch

    kind, tensor_kind, number, version, count = _HEADER.unpack_from(header)
    values = _VALUES[count].unpack_from(header, _HEADER.size)
    tensor = (
        None
        if payload is None
        else torch.frombuffer(payload, dtype=_list_tensor_types()[tensor_kind])
    )
    return Message(kind, version, values, tensor, sender, number)


@cache
def _list_tensor_types() -> tuple[torch.dtype, ...]:
    """Return the types of tensors that messages carry, in the order of their numbers."""
    import torch

    return (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.uint8,
    )
