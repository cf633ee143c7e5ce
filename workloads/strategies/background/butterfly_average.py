"""The weighted mean of the vectors of some ranks in two rounds: some members, or all, average a
part each and tell all others; as one member sees it, pure.

Of the bytes that a ring all-reduce sends this sends as many, in 2 messages one after the other and
not in 2 (n - 1): who is slow to answer is waited for twice, and a slow link delays what goes over
it and nothing else (M. Ryabinin et al., "Moshpit SGD", NeurIPS 2021, call it butterfly all-reduce).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class VectorPart:
    """A part of a vector for another member.

    Attributes:
        rank: whose it becomes.
        is_mean: whether it is everybody's mean; else it is the sender's own, for the receiver to
            average.
        weight: of what it is; 0 where nobody counts.
        values: shape [a member's part], which nobody changes.
    """

    rank: int
    is_mean: bool
    weight: int
    values: torch.Tensor


class ButterflyAverage:
    """The mean is the same on all members, bit for bit.

    Args:
        members: in ascending order.
        rank: one of them.
        vector: this one's, which nobody changes.
        weight: what it counts, 0 or more.
        owners: members that average a part each, in the order of the parts; all when absent.
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
        self._received_parts = 1
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
        """Another member's; what to send now."""
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
        """Whether all parts have come."""
        return len(self._means) == len(self._owners)

    @property
    def mean(self) -> torch.Tensor | None:
        """Of all members' vectors, once it is complete; None where none of them counts."""
        import torch

        return torch.cat([self._means[rank] for rank in self._owners]) if self._has_weight else None
