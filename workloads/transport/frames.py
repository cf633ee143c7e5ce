"""Byte format of a message: a header of integers and at most one tensor as it lies in memory."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

ACKNOWLEDGEMENT = 0
"""Kind of the messages that the transport itself sends; strategies number their kinds from 1."""

_HEADER = struct.Struct("<BbIqH")
"""Layout of the header: kind, code of the tensor's type, number, version, count of values."""
_NONE = -1
_VALUES = tuple(struct.Struct(f"<{count}q") for count in range(17))


@dataclass(frozen=True)
class Message:
    """Message from one node to another.

    Attributes:
        kind: kind of message; each strategy numbers its own kinds from 1.
        version: version of the model that the message carries or refers to.
        values: further integers, at most sixteen.
        tensor: tensor of one dimension in the host's memory; None for none.
        sender: node that sent the message, as its key proves.
        number: number of the message, counted by the sender.
    """

    kind: int
    version: int = 0
    values: tuple[int, ...] = ()
    tensor: torch.Tensor | None = None
    sender: int = -1
    number: int = 0

    @property
    def payload_bytes(self) -> int:
        """Size of the tensor in bytes."""
        return 0 if self.tensor is None else self.tensor.numel() * self.tensor.element_size()


def pack(message: Message, number: int) -> list[bytes | memoryview]:
    """Return the frames of a message.

    The tensor's memory is not copied and must not change until the message is acknowledged.
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
    # The tensor shares the memory of the received frame.
    return Message(kind, version, values, tensor, sender, number)


@cache
def _list_tensor_types() -> tuple[torch.dtype, ...]:
    """Return the types of tensors that messages carry, in the order of their codes."""
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
