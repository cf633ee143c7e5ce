"""Rule for which ranks average their models together, as the group generator applies it; pure.

Whoever is ready is grouped with those who are ready too, so that nobody waits for a slow rank as
such. Were it only that, two halves of the ranks could go on for ever without a word: after so many
groups in which not all models have mixed, a group must join ranks that have not, and waits for one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class AveragingGroup:
    """Ranks that average their models.

    Attributes:
        number: one more than that of the group before.
        members: in ascending order.
        last: the rank whose coming, or loss, made the group possible: what its members waited for.
    """

    number: int
    members: tuple[int, ...]
    last: int


class GroupRule:
    """The line of those who are ready, and the groups that it becomes. The first in line is in the
    next group.

    Args:
        present: the ranks.
        size: members of a group, or all where there are fewer.
        patience: groups after which, if they have not mixed all models, each further one joins
            ranks that they have not; so after `patience` + ranks - 1 groups at most all have mixed,
            and counting begins anew.
        formed: number of the last group before.

    Attributes:
        waiting: who is ready, in the order of their coming.
        formed: number of the last group.
    """

    def __init__(self, present: Collection[int], size: int, patience: int, formed: int = 0) -> None:
        self._present, self._size, self._patience = set(present), size, patience
        self.waiting: list[int] = []
        self.formed = formed
        self._mixed_labels: dict[int, int] = {}
        self._groups_since_mixed = 0
        self._reset_mixing()

    def ready(self, rank: int) -> tuple[AveragingGroup, ...]:
        """A rank asks for a group."""
        if rank not in self._present or rank in self.waiting:
            return ()
        self.waiting.append(rank)
        return self._form(rank)

    def remove_member(self, rank: int) -> tuple[AveragingGroup, ...]:
        """A rank is gone: nobody waits for it any longer."""
        self._present.discard(rank)
        self._mixed_labels.pop(rank, None)
        self.waiting = [each for each in self.waiting if each != rank]
        self._reset_if_mixed()
        return self._form(rank)

    def add_member(self, rank: int) -> None:
        """A rank is there from now on; its model has mixed with none."""
        self._present.add(rank)
        self._reset_mixing()

    def withdraw(self, rank: int) -> bool:
        """A rank does not want a group any more; returns whether it had asked for one."""
        was_waiting = rank in self.waiting
        self.waiting = [each for each in self.waiting if each != rank]
        return was_waiting

    def _form(self, cause: int) -> tuple[AveragingGroup, ...]:
        groups = []
        while (members := self._choose()) is not None:
            self.formed += 1
            self.waiting = [each for each in self.waiting if each not in members]
            groups.append(AveragingGroup(self.formed, tuple(sorted(members)), cause))
            self._mix(members)
        return tuple(groups)

    def _choose(self) -> list[int] | None:
        size = min(self._size, len(self._present))
        if not self.waiting or len(self.waiting) < size:
            return None
        if self._groups_since_mixed < self._patience or size < 2:
            return self.waiting[:size]
        first = self.waiting[0]
        strangers = [
            rank for rank in self.waiting if self._mixed_labels[rank] != self._mixed_labels[first]
        ]
        if not strangers:
            return None
        others = [rank for rank in self.waiting[1:] if rank != strangers[0]]
        return [first, strangers[0], *others[: size - 2]]

    def _mix(self, members: list[int]) -> None:
        joined, label = (
            {self._mixed_labels[rank] for rank in members},
            self._mixed_labels[members[0]],
        )
        self._mixed_labels = {
            rank: label if each in joined else each for rank, each in self._mixed_labels.items()
        }
        self._groups_since_mixed += 1
        self._reset_if_mixed()

    def _reset_if_mixed(self) -> None:
        if len(set(self._mixed_labels.values())) <= 1:
            self._reset_mixing()

    def _reset_mixing(self) -> None:
        self._mixed_labels, self._groups_since_mixed = {rank: rank for rank in self._present}, 0
