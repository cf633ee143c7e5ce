"""Process groups of collectives: the arguments that torch records, and the ranks that they mean.

A group's name identifies it on one rank only: tensor-parallel pairs [0, 1] and [2, 3] may both be
called `tp`. The list of ranks decides. It is in the arguments of an event, in full or truncated, or
in `distributedInfo.pg_config`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from laggard.analysis.formats.kineto.collective_names import normalize_collective_name

_NAME, _RANKS, _SIZE = "Process Group Name", "Process Group Ranks", "Group size"
_KIND = "Collective name"
_MAX_RANKS = 1 << 20
_MAX_RANK = 1 << 31
_MAX_CHARS = 1 << 16
_NUMBER = re.compile(r"\d{1,10}")
# The name of the group of all ranks, which init_process_group creates.
_DEFAULT_NAMES = ("0", "default_pg")


@dataclass(frozen=True)
class ProcessGroup:
    """Process group as one rank recorded it.

    Attributes:
        name: name of the group on this rank.
        ranks: ranks of the group in ascending order; empty if unknown.
        size: number of ranks, or 0 if unknown.
    """

    name: str
    ranks: tuple[int, ...] = ()
    size: int = 0

    def __hash__(self) -> int:
        """Return a hash that takes the same time for any number of ranks."""
        return hash((self.name, self.size, self.ranks[:1]))


UNKNOWN_GROUP = ProcessGroup("", size=-1)
"""Any of several groups, since the trace does not say which."""
UNLABELED = -1
"""Number of a collective's description if there is none."""


@dataclass(frozen=True)
class GroupLabel:
    """Arguments of one event that describe its collective.

    Attributes:
        name: name of the process group.
        ranks: list of ranks as text, possibly truncated.
        size: number of ranks, or 0 if not recorded.
        kind: name of the collective, such as `allreduce`, or "" if not recorded.
    """

    name: str
    ranks: str
    size: int
    kind: str


@dataclass(frozen=True)
class ResolvedLabel:
    """Process group and kind of a collective; None and "" if they are not recorded."""

    group: ProcessGroup | None
    kind: str


NO_LABEL = ResolvedLabel(None, "")
"""Label of a collective that is not described."""


def parse_group_label(arguments: Mapping[str, object]) -> GroupLabel | None:
    """Return the description of an event's collective, or None if there is none."""
    name, ranks, size, kind = (arguments.get(key) for key in (_NAME, _RANKS, _SIZE, _KIND))
    if name is None and ranks is None and size is None and kind is None:
        return None
    return GroupLabel(
        name=name if isinstance(name, str) else "",
        ranks=_format_ranks(ranks),
        size=size if isinstance(size, int) and 0 < size <= _MAX_RANKS else 0,
        kind=normalize_collective_name(kind) if isinstance(kind, str) else "",
    )


def _format_ranks(ranks: object) -> str:
    if isinstance(ranks, str):
        return ranks if len(ranks) <= _MAX_CHARS else ""
    if isinstance(ranks, Sequence) and all(type(rank) is int for rank in ranks):
        return str(list(ranks))
    return ""


@dataclass(frozen=True)
class GroupConfig:
    """Process groups that a rank belongs to, by name, from `distributedInfo.pg_config`."""

    ranks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)


def parse_group_config(distributed: Mapping[str, object]) -> GroupConfig:
    """Return the process groups of a trace; invalid entries are ignored."""
    ranks: dict[str, tuple[int, ...]] = {}
    sizes: dict[str, int] = {}
    entries = distributed.get("pg_config")
    for entry in entries if isinstance(entries, Sequence) else ():
        if not isinstance(entry, Mapping):
            continue
        name, own, size = entry.get("pg_name"), entry.get("ranks"), entry.get("pg_size")
        key = str(name)
        if name is None:
            continue
        members = parse_ranks(_format_ranks(own), 0)
        if members:
            ranks[key] = members
        if isinstance(size, int) and 0 < size <= _MAX_RANKS:
            sizes[key] = size
    return GroupConfig(ranks, sizes)


def resolve_labels(
    labels: Sequence[GroupLabel], config: GroupConfig, world: int
) -> Mapping[int, ResolvedLabel]:
    """Return the process group and kind that each description of a trace means.

    gloo does not describe its collectives. If a rank belongs to one group only, they are those of
    this group.

    Args:
        labels: descriptions in the trace.
        config: process groups of the trace.
        world: number of ranks of the job, or 0 if unknown.
    """
    several = len({ranks for ranks in config.ranks.values() if len(ranks) > 1}) > 1
    default = UNKNOWN_GROUP if several else None
    resolved = {
        number: ResolvedLabel(_resolve_group(label, config, world) or default, label.kind)
        for number, label in enumerate(labels)
    }
    return resolved | {UNLABELED: ResolvedLabel(default, "")}


def _resolve_group(label: GroupLabel, config: GroupConfig, world: int) -> ProcessGroup | None:
    if not label.name and not label.ranks and not label.size:
        return None
    size = label.size or config.sizes.get(label.name, 0)
    ranks = parse_ranks(label.ranks, size) or config.ranks.get(label.name, ())
    if not ranks and world and (size == world or (not size and label.name in _DEFAULT_NAMES)):
        ranks = tuple(range(world))
    return ProcessGroup(label.name, ranks, len(ranks) or size)


def parse_ranks(text: str, size: int) -> tuple[int, ...]:
    """Return the ranks in a text such as `[0, 1]`, in ascending order; empty if unknown.

    torch truncates a long list to its first ranks and the last one. Then the ranks are known only
    if those that remain are equally spaced and agree with the size.

    Examples:
        >>> parse_ranks("[4, 6]", 2)
        (4, 6)
        >>> parse_ranks("[0, 2, ..., 10]", 6)
        (0, 2, 4, 6, 8, 10)
    """
    head, cut, tail = text.partition("...")
    first = _parse_numbers(head)
    if not cut:
        return tuple(sorted(set(first))) if not size or len(set(first)) == size else ()
    last = _parse_numbers(tail)
    if len(first) < 2 or len(last) > 1 or not size:
        return ()
    distance = first[1] - first[0]
    ranks = tuple(range(first[0], first[0] + distance * size, distance)) if distance > 0 else ()
    agrees = ranks[: len(first)] == first and (not last or ranks[-1] == last[0])
    return ranks if agrees else ()


def _parse_numbers(text: str) -> tuple[int, ...]:
    numbers = tuple(int(found) for found in _NUMBER.findall(text))
    return numbers if len(numbers) <= _MAX_RANKS and max(numbers, default=0) < _MAX_RANK else ()
