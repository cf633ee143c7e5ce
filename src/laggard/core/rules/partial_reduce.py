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


class MixedSets:
    """Ranks whose models have mixed, directly or through others, as disjoint sets.

    R. E. Tarjan, "Efficiency of a good but not linear set union algorithm", J. ACM 22, 1975.

    Args:
        ranks: ranks, each of which is a set of its own at first.

    Attributes:
        count: number of sets that have a rank.
    """

    def __init__(self, ranks: Collection[int]) -> None:
        self._parents = {rank: rank for rank in ranks}
        self._sizes = dict.fromkeys(ranks, 1)
        self.count = len(self._sizes)

    def find(self, rank: int) -> int:
        """Return the rank that names the set of a rank; it may have been removed."""
        parents = self._parents
        while parents[rank] != rank:
            parents[rank] = parents[parents[rank]]
            rank = parents[rank]
        return rank

    def join(self, rank: int, other: int) -> None:
        """Make one set of the sets of two ranks."""
        kept, joined = self.find(rank), self.find(other)
        if kept == joined:
            return
        if self._sizes[kept] < self._sizes[joined]:
            kept, joined = joined, kept
        self._parents[joined] = kept
        self._sizes[kept] += self._sizes.pop(joined)
        self.count -= 1

    def remove(self, rank: int) -> None:
        """Remove a rank from its set."""
        name = self.find(rank)
        self._sizes[name] -= 1
        self.count -= self._sizes[name] == 0


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
        self._mixed = MixedSets(())
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
        if rank in self._present:
            self._present.remove(rank)
            self._mixed.remove(rank)
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
        first, find = self.waiting[0], self._mixed.find
        stranger = next((rank for rank in self.waiting if find(rank) != find(first)), None)
        if stranger is None:
            return None
        others = [rank for rank in self.waiting[1:] if rank != stranger]
        return [first, stranger, *others[: size - 2]]

    def _mix(self, members: list[int]) -> None:
        for rank in members[1:]:
            self._mixed.join(members[0], rank)
        self._groups_since_mixed += 1
        self._reset_if_mixed()

    def _reset_if_mixed(self) -> None:
        if self._mixed.count <= 1:
            self._reset_mixing()

    def _reset_mixing(self) -> None:
        self._mixed, self._groups_since_mixed = MixedSets(self._present), 0


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
