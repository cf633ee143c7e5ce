"""Mean of the vectors of some ranks by a ring all-reduce; one member's side, pure.

P. Patarasuk, X. Yuan, JPDC 2009.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Chunk:
    """Part of a vector on its way to the next member.

    Attributes:
        turn: turn in which it is sent, from 0.
        part: the values.
    """

    turn: int
    part: torch.Tensor


class RingAverage:
    """State of one member of a ring all-reduce.

    Each chunk travels around the ring twice: once to be summed, once to be distributed. The mean
    is the same on all members, bit for bit.

    Args:
        members: ranks in the order of the ring.
        rank: one of them.
        vector: vector of this rank, which is not modified.
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
        """Handle the next chunk of the previous member and return the chunk to send, if any."""
        # In turn t, the member at place p receives chunk p - t - 1 and sends chunk p - t, modulo
        # the number of members. The sum is not made in place, because chunks are views of `vector`
        # and sent ones must not change.
        place = (self._place - self._turn - 1) % self._world
        self._chunks[place] = self._chunks[place] + part if self._turn < self._world - 1 else part
        self._turn += 1
        return None if self.complete else self._chunk(self._turn)

    @property
    def complete(self) -> bool:
        """True once all chunks have arrived."""
        return self._turn == 2 * (self._world - 1)

    @property
    def mean(self) -> torch.Tensor:
        """Mean of all members' vectors, available once it is complete."""
        import torch

        return torch.cat(self._chunks) / self._world

    def _chunk(self, turn: int) -> Chunk:
        """Return the chunk to send in this turn, and count its bytes."""
        part = self._chunks[(self._place - turn) % self._world]
        self.payload_bytes += part.numel() * part.element_size()
        return Chunk(turn, part)
