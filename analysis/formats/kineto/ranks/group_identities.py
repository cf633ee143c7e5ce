"""Identities of process groups, the same on all ranks.

A group's name identifies it on one rank only, so the list of ranks decides. Several groups may have
the same ranks; then the name distinguishes them, if all ranks use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from laggard.analysis.formats.kineto.process_groups import UNKNOWN_GROUP, ProcessGroup
from laggard.analysis.formats.kineto.step_trace import RankCollective, StepTrace

RankSteps = Mapping[int, Mapping[int, StepTrace]]
"""Steps of every rank, by rank and step number."""


@dataclass(frozen=True)
class GroupKey:
    """Process group, identified for all ranks.

    Attributes:
        ranks: ranks of the group; empty for the group of all ranks that recorded no group.
        name: name of the group, if its ranks agree on it; several groups may have the same ranks.
    """

    ranks: tuple[int, ...] = ()
    name: str = ""

    def __hash__(self) -> int:
        """Return a hash that takes the same time for any number of ranks."""
        return hash((self.name, len(self.ranks), self.ranks[:1]))


ALL_RANKS = GroupKey()
"""Group of the collectives without a recorded process group."""


class GroupIdentities:
    """Identities of the process groups that ranks recorded."""

    def __init__(self, steps: RankSteps) -> None:
        """Identify the groups.

        Args:
            steps: steps of every rank.
        """
        self._present = frozenset(steps)
        self._recorded = {
            rank: frozenset(
                each.group
                for step in own.values()
                for each in step.collectives
                if each.group is not None and not each.is_point_to_point
            )
            for rank, own in steps.items()
        }
        self._names = {
            rank: _list_names_by_ranks(groups) for rank, groups in self._recorded.items()
        }
        self._are_unlabeled_unknown = any(
            UNKNOWN_GROUP in groups for groups in self._recorded.values()
        )
        self._keys: dict[ProcessGroup, GroupKey | None] = {}
        # Ranks share few groups but have objects of their own, whose comparison takes long.
        self._keys_by_object: dict[int, GroupKey | None] = {}

    def identify(self, collective: RankCollective) -> GroupKey | None:
        """Return the identity of a collective's group; None if its ranks are unknown."""
        if collective.is_point_to_point:
            return None
        if collective.group is None:
            return None if self._are_unlabeled_unknown else ALL_RANKS
        number = id(collective.group)
        if number not in self._keys_by_object:
            if collective.group not in self._keys:
                self._keys[collective.group] = self._find_key(collective.group)
            self._keys_by_object[number] = self._keys[collective.group]
        return self._keys_by_object[number]

    def has_unknown_groups(self) -> bool:
        """Return whether the ranks of any group are unknown."""
        known = {group for groups in self._recorded.values() for group in groups}
        return any(self._find_key(group) is None for group in known)

    def _find_key(self, group: ProcessGroup) -> GroupKey | None:
        if not group.ranks:
            return self._find_key_by_name(group)
        names = {self._names[r].get(group.ranks) for r in self._present & set(group.ranks)}
        # If ranks call the group differently, the order of launches distinguishes its collectives.
        return GroupKey(group.ranks, group.name if len(names) == 1 else "")

    def _find_key_by_name(self, group: ProcessGroup) -> GroupKey | None:
        """Return the identity of a group whose ranks nobody recorded.

        It is known if there are only as many ranks with a group of this name as it has ranks.
        """
        same = sorted(rank for rank, groups in self._recorded.items() if group in groups)
        return GroupKey(tuple(same), group.name) if group.size in (0, len(same)) else None


def _list_names_by_ranks(
    groups: frozenset[ProcessGroup],
) -> Mapping[tuple[int, ...], frozenset[str]]:
    return {
        ranks: frozenset(group.name for group in groups if group.ranks == ranks)
        for ranks in {group.ranks for group in groups}
    }
