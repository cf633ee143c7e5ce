"""The small protocol between the emulator and its caller: length-prefixed pickles over a Unix
socket pair.

    caller -> emulator   Change, answered by Changed; the end of the stream is the order to stop
    emulator -> caller   Ready once all devices exist, or a LaggardError; Changed

Counters and lateness need no message: they are in shared memory.
"""

from __future__ import annotations

import pickle
import socket
import struct
from dataclasses import dataclass

from laggard.core.errors import EmulationError
from laggard.network_emulation.forked import PackedError
from laggard.network_emulation.link_plan import Constraint

_LENGTH = struct.Struct("=I")
_CHUNK = 1 << 16


@dataclass(frozen=True)
class EmulatorReady:
    """All devices exist; `realtime` tells whether the emulator has real-time priority."""

    realtime: bool


@dataclass(frozen=True)
class Change:
    """New constraints by route index, and by host index whether it may send super-packets."""

    constraints: tuple[tuple[int, Constraint], ...]
    segmentation: tuple[tuple[int, bool], ...] = ()


@dataclass(frozen=True)
class Changed:
    """A change has been in effect since `effective_ns` on CLOCK_MONOTONIC."""

    effective_ns: int


Message = EmulatorReady | Change | Changed | PackedError


def send_message(end: socket.socket, message: Message) -> None:
    """Send a message; blocks until it is on its way."""
    payload = pickle.dumps(message)
    end.sendall(_LENGTH.pack(len(payload)) + payload)


def receive_message(end: socket.socket) -> Message:
    """Wait for a message.

    Raises:
        EmulationError: the other side is gone.
    """
    inbox = Inbox()
    while True:
        chunk = end.recv(_CHUNK)
        if not chunk:
            raise EmulationError("the link emulator died; its output on stderr says why")
        messages = inbox.feed(chunk)
        if messages:
            return messages[0]


class Inbox:
    """Puts messages together from the chunks in which they arrive."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> list[Message]:
        """Take a chunk; returns the messages that it completes."""
        self._buffer += chunk
        messages: list[Message] = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            # From our own fork.
            messages.append(pickle.loads(bytes(self._buffer[_LENGTH.size : end])))  # noqa: S301
            del self._buffer[:end]
        return messages
