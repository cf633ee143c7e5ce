"""Protocol between the emulator and its caller: length-prefixed pickles over a socket pair.

    caller -> emulator   Change, answered by Changed; the end of the stream stops the emulator
    emulator -> caller   EmulatorReady once all devices exist, or a PackedError; Changed

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
    """Report that all devices exist.

    Attributes:
        realtime: True if the emulator has real-time priority.
    """

    realtime: bool


@dataclass(frozen=True)
class Change:
    """Request to change links.

    Attributes:
        constraints: route index and new constraint of every changed link.
        segmentation: host index, and True if the host may send super-packets.
    """

    constraints: tuple[tuple[int, Constraint], ...]
    segmentation: tuple[tuple[int, bool], ...] = ()


@dataclass(frozen=True)
class Changed:
    """Report that a change has taken effect.

    Attributes:
        effective_ns: CLOCK_MONOTONIC nanoseconds of the change.
    """

    effective_ns: int


Message = EmulatorReady | Change | Changed | PackedError


def send_message(end: socket.socket, message: Message) -> None:
    """Send a message; blocks until the socket has accepted all of it."""
    payload = pickle.dumps(message)
    end.sendall(_LENGTH.pack(len(payload)) + payload)


def receive_message(end: socket.socket) -> Message:
    """Wait for a message and return it.

    Raises:
        EmulationError: if the other side has exited.
    """
    inbox = Inbox()
    while True:
        chunk = end.recv(_CHUNK)
        if not chunk:
            raise EmulationError("the link emulator has exited; see its error output on stderr")
        messages = inbox.feed(chunk)
        if messages:
            return messages[0]


class Inbox:
    """Reassembly of messages from the chunks in which they arrive."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> list[Message]:
        """Add a chunk and return the messages that it completes."""
        self._buffer += chunk
        messages: list[Message] = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            # The pickles come from our own fork, so loading them is safe.
            messages.append(pickle.loads(bytes(self._buffer[_LENGTH.size : end])))  # noqa: S301
            del self._buffer[:end]
        return messages
