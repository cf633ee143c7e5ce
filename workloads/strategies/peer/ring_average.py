"""The mean of the vectors of some ranks: a ring all-reduce as one of its members sees it, pure
(Patarasuk and Yuan, JPDC 2009).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Chunk:
    """A part of a vector on its way to the next member: in which turn it was sent."""

    turn: int
    part: torch.Tensor


class RingAverage:
    """Each chunk goes round once to be summed, and once to be told; the mean is the same on all
    members, bit for bit.

    Args:
        members: in the order of the ring.
        rank: one of them.
        vector: this one's, which stays as it is.
    """

    def __init__(self, members: tuple[int, ...], rank: int, vector: torch.Tensor) -> None:
        import torch

        self._world, self._place = len(members), members.index(rank)
        self.next = members[(self._place + 1) % self._world]
        self._chunks = list(torch.tensor_split(vector, self._world))
        self._turn = 0
        self.payload_bytes = 0

    def begin(self) -> Chunk | None:
        """Return the first chunk to send; None for a member that is alone."""
        return None if self.complete else self._chunk(0)

    def receive(self, part: torch.Tensor) -> Chunk | None:
        """The next chunk of the member before has come; what to send now, if anything."""
        place = (self._place - self._turn - 1) % self._world
        self._chunks[place] = self._chunks[place] + part if self._turn < self._world - 1 else part
        self._turn += 1
        return None if self.complete else self._chunk(self._turn)

    @property
    def complete(self) -> bool:
        """Whether all chunks have come."""
        return self._turn == 2 * (self._world - 1)

    @property
    def mean(self) -> torch.Tensor:
        """Of all members' vectors, once it is complete."""
        import torch

        return torch.cat(self._chunks) / self._world

    def _chunk(self, turn: int) -> Chunk:
        part = self._chunks[(self._place - turn) % self._world]
        self.payload_bytes += part.numel() * part.element_size()
        return Chunk(turn, part)
