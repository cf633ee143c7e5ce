"""Weighted mean of the vectors of some ranks in two rounds; one member's side, pure.

Some members, or all, average one part of the vector each and send it to all others. It sends as
many bytes as a ring all-reduce, but in 2 consecutive messages instead of 2 (n - 1). So a slow rank
is waited for only twice, and a slow link delays only its own messages. M. Ryabinin et al.,
"Moshpit SGD", NeurIPS 2021, call it butterfly all-reduce.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class VectorPart:
    """Part of a vector for another member.

    Attributes:
        rank: receiver of the part.
        is_mean: whether it is the mean of all members; otherwise it is the sender's own part,
            which the receiver averages.
        weight: weight of the values; 0 if no member has a weight.
        values: values of the part, one-dimensional; must not be modified.
    """

    rank: int
    is_mean: bool
    weight: int
    values: torch.Tensor


class ButterflyAverage:
    """State of one member of an average.

    The mean is the same on all members, bit for bit.

    Args:
        members: ranks in ascending order.
        rank: one of them.
        vector: vector of this rank, which is not modified.
        weight: weight of this vector, 0 or more.
        owners: members that average a part each, in the order of the parts; all members when
            absent.
    """

    def __init__(
        self,
        members: tuple[int, ...],
        rank: int,
        vector: torch.Tensor,
        weight: int,
        owners: tuple[int, ...] | None = None,
    ) -> None:
        import torch

        self._members, self._rank, self._owners = members, rank, owners or members
        self._mine = torch.tensor_split(vector, len(self._owners))
        self._sum = self._mine[self._owners.index(rank)] * weight if rank in self._owners else None
        self._own_weight = self._weight = weight
        self._received_parts = 1  # its own
        self._means: dict[int, torch.Tensor] = {}
        self._has_weight = True

    def begin(self) -> list[VectorPart]:
        """Return the first parts to send."""
        others = zip(self._owners, self._mine, strict=True)
        parts = [
            VectorPart(rank, False, self._own_weight, values)
            for rank, values in others
            if rank != self._rank
        ]
        return parts + self._finish()

    def receive(self, sender: int, part: VectorPart) -> list[VectorPart]:
        """Handle a part of another member and return the parts to send."""
        if part.is_mean:
            self._store_mean(sender, part.weight, part.values)
            return []
        assert self._sum is not None
        self._sum += part.values * part.weight
        self._weight += part.weight
        self._received_parts += 1
        return self._finish()

    def _finish(self) -> list[VectorPart]:
        if self._sum is None or self._received_parts < len(self._members):
            return []
        # If all weights are 0, the sum is 0, too, and `mean` returns None.
        mean = self._sum / max(self._weight, 1)
        self._store_mean(self._rank, self._weight, mean)
        return [
            VectorPart(rank, True, self._weight, mean)
            for rank in self._members
            if rank != self._rank
        ]

    def _store_mean(self, owner: int, weight: int, values: torch.Tensor) -> None:
        self._means[owner] = values
        self._has_weight = weight > 0

    @property
    def complete(self) -> bool:
        """True once all parts have arrived."""
        return len(self._means) == len(self._owners)

    @property
    def mean(self) -> torch.Tensor | None:
        """Mean of all members' vectors, once complete; None if all weights are 0."""
        import torch

        return torch.cat([self._means[rank] for rank in self._owners]) if self._has_weight else None
