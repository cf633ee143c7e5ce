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
from laggard.core.span_schema import NO_PEER

_NAME, _RANKS, _SIZE = "Process Group Name", "Process Group Ranks", "Group size"
_KIND = "Collective name"
_PEERS = {"send": "Dst Rank", "recv": "Src Rank"}
# The place of the peer among the recorded arguments of an operation that launches a message.
_OPERATION_PEER = {"c10d::send": 2, "c10d::recv_": 2}
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
        peer: rank of the job to or from which a message goes, or -1 if not recorded.
        peer_in_group: number of this rank in the group, or -1 if not recorded.
    """

    name: str
    ranks: str
    size: int
    kind: str
    peer: int = NO_PEER
    peer_in_group: int = NO_PEER


@dataclass(frozen=True)
class ResolvedLabel:
    """Process group and kind of a collective; None and "" if they are not recorded.

    `peer` is the other rank of a message, or -1.
    """

    group: ProcessGroup | None
    kind: str
    peer: int = NO_PEER


NO_LABEL = ResolvedLabel(None, "")
"""Label of a collective that is not described."""


def parse_group_label(arguments: Mapping[str, object], operation: str = "") -> GroupLabel | None:
    """Return the description of an event's collective, or None if there is none.

    Args:
        arguments: arguments of the event.
        operation: name of the event.
    """
    name, ranks = arguments.get(_NAME), arguments.get(_RANKS)
    size, kind = arguments.get(_SIZE), arguments.get(_KIND)
    peer_in_group = _parse_operation_peer(arguments, operation)
    if name is None and ranks is None and size is None and kind is None and peer_in_group < 0:
        return None
    normal_kind = normalize_collective_name(kind if isinstance(kind, str) else "")
    peer = NO_PEER
    if normal_kind in _PEERS:
        peer = _parse_rank(arguments.get(_PEERS[normal_kind]))
        peer_in_group = _parse_rank(arguments.get("Rank"))
    return GroupLabel(
        name=name if isinstance(name, str) else "",
        ranks=_format_ranks(ranks),
        size=size if isinstance(size, int) and 0 < size <= _MAX_RANKS else 0,
        kind=normal_kind,
        peer=peer,
        peer_in_group=peer_in_group,
    )


def _parse_operation_peer(arguments: Mapping[str, object], operation: str) -> int:
    place = _OPERATION_PEER.get(operation)
    inputs = None if place is None else arguments.get("Concrete Inputs")
    if place is None or not isinstance(inputs, Sequence) or len(inputs) <= place:
        return NO_PEER
    return _parse_rank(inputs[place])


def _parse_rank(value: object) -> int:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = int(value)
    return value if type(value) is int and 0 <= value < _MAX_RANK else NO_PEER


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
    resolved = {}
    for number, label in enumerate(labels):
        group = _resolve_group(label, config, world)
        resolved[number] = ResolvedLabel(group or default, label.kind, _resolve_peer(label, group))
    return resolved | {UNLABELED: ResolvedLabel(default, "")}


def _resolve_peer(label: GroupLabel, group: ProcessGroup | None) -> int:
    """Return the other rank of a message, or -1.

    gloo records its number in a group only, which is taken as that of the default group.
    """
    if label.peer >= 0 or group is None:
        return label.peer if label.peer >= 0 else label.peer_in_group
    known = 0 <= label.peer_in_group < len(group.ranks)
    return group.ranks[label.peer_in_group] if known else NO_PEER


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
