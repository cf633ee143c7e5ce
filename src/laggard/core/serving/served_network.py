"""A network that answers requests: a chain of blocks, between any two of which it can be cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate


@dataclass(frozen=True)
class ServedNetwork:
    """Network as a chain of blocks, on one device and on one server.

    A cut at k leaves the first k blocks to the device. Without a server only the last cut is
    possible, at which the device computes all of it.

    Attributes:
        name: name of the network.
        device_s: seconds of each block at the device, [blocks].
        server_s: seconds of each block at the server, [blocks]; empty without a server.
        cut_bytes: bytes that pass at each cut but the last, [blocks]: the sample, and the output of
            every block but the last.
        answer_bytes: bytes of the answer.
    """

    name: str
    device_s: tuple[float, ...]
    server_s: tuple[float, ...] = ()
    cut_bytes: tuple[float, ...] = ()
    answer_bytes: float = 0.0

    @property
    def blocks(self) -> int:
        """Return the number of blocks, which is the cut that needs no server."""
        return len(self.device_s)

    @property
    def alone_s(self) -> float:
        """Return the seconds that the device takes for all blocks."""
        return sum(self.device_s)

    def paced(self, pace: float) -> ServedNetwork:
        """Return the network at a device whose blocks take a multiple of these seconds."""
        return replace(self, device_s=tuple(pace * each for each in self.device_s))

    def sum_head_s(self) -> Sequence[float]:
        """Return the seconds of the device before each cut, [blocks + 1]."""
        return list(accumulate(self.device_s, initial=0.0))

    def sum_tail_s(self) -> Sequence[float]:
        """Return the seconds of the server after each cut, [blocks + 1]."""
        return list(accumulate(reversed(self.server_s), initial=0.0))[::-1]
