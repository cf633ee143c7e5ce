"""Which ranks average their models together: the rule of who asks for a group, pure.

Whoever is ready is grouped with those who are ready too, so that nobody waits for a slow rank as
such. Were it only that, two halves of the ranks could go on for ever without a word: after so many
groups in which not all models have mixed, a group must join ranks that have not, and waits for one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
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
        there: the ranks.
        size: members of a group, or all where there are fewer.
        patience: groups after which, if they have not mixed all models, each further one joins
            ranks that they have not; so after `patience` + ranks - 1 groups at most all have mixed,
            and counting begins anew.
        formed: number of the last group before.

    Attributes:
        line: who is ready, in the order of their coming.
        formed: number of the last group.
    """

    def __init__(self, there: Collection[int], size: int, patience: int, formed: int = 0) -> None:
        self._there, self._size, self._patience = set(there), size, patience
        self.line: list[int] = []
        self.formed = formed
        self._mixed: dict[int, int] = {}
        self._since = 0
        self._begin_anew()

    def ready(self, rank: int) -> tuple[Group, ...]:
        """A rank asks for a group."""
        if rank not in self._there or rank in self.line:
            return ()
        self.line.append(rank)
        return self._form(rank)

    def leave(self, rank: int) -> tuple[Group, ...]:
        """A rank is gone: nobody waits for it any longer."""
        self._there.discard(rank)
        self._mixed.pop(rank, None)
        self.line = [each for each in self.line if each != rank]
        self._note_whether_mixed()
        return self._form(rank)

    def admit(self, rank: int) -> None:
        """A rank is there from now on; its model has mixed with none."""
        self._there.add(rank)
        self._begin_anew()

    def withdraw(self, rank: int) -> bool:
        """A rank does not want a group any more; returns whether it had asked for one."""
        waited = rank in self.line
        self.line = [each for each in self.line if each != rank]
        return waited

    def _form(self, cause: int) -> tuple[Group, ...]:
        groups = []
        while (members := self._choose()) is not None:
            self.formed += 1
            self.line = [each for each in self.line if each not in members]
            groups.append(Group(self.formed, tuple(sorted(members)), cause))
            self._mix(members)
        return tuple(groups)

    def _choose(self) -> list[int] | None:
        size = min(self._size, len(self._there))
        if not self.line or len(self.line) < size:
            return None
        if self._since < self._patience or size < 2:
            return self.line[:size]
        first = self.line[0]
        strangers = [rank for rank in self.line if self._mixed[rank] != self._mixed[first]]
        if not strangers:
            return None
        others = [rank for rank in self.line[1:] if rank != strangers[0]]
        return [first, strangers[0], *others[: size - 2]]

    def _mix(self, members: list[int]) -> None:
        joined, label = {self._mixed[rank] for rank in members}, self._mixed[members[0]]
        self._mixed = {
            rank: label if each in joined else each for rank, each in self._mixed.items()
        }
        self._since += 1
        self._note_whether_mixed()

    def _note_whether_mixed(self) -> None:
        if len(set(self._mixed.values())) <= 1:
            self._begin_anew()

    def _begin_anew(self) -> None:
        self._mixed, self._since = {rank: rank for rank in self._there}, 0
