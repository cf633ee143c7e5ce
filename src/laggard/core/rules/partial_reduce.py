"""Rule by which the group generator decides which ranks average their models; pure.

Ranks that are ready are grouped with other ready ranks, so no rank waits for a particular slow
rank. That alone could split the ranks into halves that never exchange models. So after a number of
groups without full mixing, each group must join ranks whose models have not mixed, and waits for
such a rank.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class AveragingGroup:
    """Ranks that average their models.

    Attributes:
        number: number of the group; one more than that of the previous group.
        members: ranks in ascending order.
        last: rank whose request or loss made the group possible; the other members waited for it.
    """

    number: int
    members: tuple[int, ...]
    last: int


class GroupRule:
    """Queue of ready ranks, and the groups formed from it.

    The first rank in the queue is always in the next group.

    Args:
        present: present ranks.
        size: members of a group, or all ranks if there are fewer.
        patience: number of groups without full mixing after which each further group joins ranks
            that have not mixed. After at most `patience` + ranks - 1 groups all models have mixed,
            and counting begins again.
        formed: number of the last group that was formed before.

    Attributes:
        waiting: ready ranks, in the order of their requests.
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
        """Handle a rank's request for a group and return the groups formed."""
        if rank not in self._present or rank in self.waiting:
            return ()
        self.waiting.append(rank)
        return self._form(rank)

    def remove_member(self, rank: int) -> tuple[AveragingGroup, ...]:
        """Stop waiting for a rank that is gone and return the groups formed."""
        self._present.discard(rank)
        self._mixed_labels.pop(rank, None)
        self.waiting = [each for each in self.waiting if each != rank]
        self._reset_if_mixed()
        return self._form(rank)

    def add_member(self, rank: int) -> None:
        """Add a rank whose model has mixed with no other model yet."""
        self._present.add(rank)
        self._reset_mixing()

    def withdraw(self, rank: int) -> bool:
        """Remove a rank from the queue and return whether it was there."""
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
        # Ranks with the same label have mixed, directly or through others.
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


def create_group_rule(
    present: Collection[int], size: int, rounds: int, formed: int = 0
) -> GroupRule:
    """Return the rule of `partial_reduce` with its parameters.

    Args:
        present: present ranks.
        size: members of a group.
        rounds: steps after which groups join ranks whose models have not mixed.
        formed: number of the last group that was formed before.
    """
    # The rule counts groups, not steps: a step of all ranks is enough groups for all of them.
    groups_per_round = -(-len(present) // size)
    return GroupRule(present, size, rounds * groups_per_round, formed)
