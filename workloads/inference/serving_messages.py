"""Messages between devices, their neighbors and a server."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import torch

from laggard.workloads.transport.frames import Message


class ServingMessageKind(enum.IntEnum):
    """Kind of a message."""

    ASK = 1
    ANSWER = 2
    PROBE = 3
    ECHO = 4
    END = 5


@dataclass(frozen=True)
class Question:
    """Blocks that another node asks to have computed.

    Attributes:
        sender: node that asks.
        number: number of the request at that node.
        network: number of the network.
        cut: number of blocks that are computed already.
        deadline_us: virtual microseconds after the start until which it must be answered; -1
            without a deadline.
        values: input of the next block, one dimension.
    """

    sender: int
    number: int
    network: int
    cut: int
    deadline_us: int
    values: torch.Tensor

    def pack(self) -> Message:
        """Return the message."""
        numbers = self.number, self.network, self.cut, self.deadline_us
        return Message(ServingMessageKind.ASK, values=numbers, tensor=self.values)

    @classmethod
    def unpack(cls, message: Message) -> Question:
        """Return the question of a message."""
        number, network, cut, deadline_us = message.values
        assert message.tensor is not None
        return cls(message.sender, number, network, cut, deadline_us, message.tensor)


@dataclass(frozen=True)
class Reply:
    """Answer to a question.

    Attributes:
        sender: node that answers.
        number: number of the request at the node that asked.
        stayed_us: virtual microseconds between the question's arrival and the answer.
        backlog_us: virtual microseconds of work that waits there.
        logits: output of the network, one dimension; empty for an echo.
    """

    sender: int
    number: int
    stayed_us: int
    backlog_us: int
    logits: torch.Tensor

    def pack(self) -> Message:
        """Return the message."""
        numbers = self.number, self.stayed_us, self.backlog_us
        return Message(ServingMessageKind.ANSWER, values=numbers, tensor=self.logits)

    @classmethod
    def unpack(cls, message: Message) -> Reply:
        """Return the answer of a message."""
        number, stayed_us, backlog_us = message.values
        assert message.tensor is not None
        return cls(message.sender, number, stayed_us, backlog_us, message.tensor)
