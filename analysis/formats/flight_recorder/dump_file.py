"""Parser of one rank's dump: JSON from `torch._C._distributed_c10d._dump_nccl_trace_json`.

Messages name an entry by its position in `entries`, counted from 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from laggard.analysis.formats.trace_json import Json
from laggard.analysis.formats.trace_json.event_stream import EventStream, is_json_list
from laggard.analysis.formats.trace_json.json_file import open_json_file, parse_rank_of_name
from laggard.core.errors import TraceFormatError

_MAX_TIME_NS = 1 << 61
_MAX_DURATION_MS = 1e9
_MAX_SEQUENCE = 1 << 53
_NS_PER_MS = 1_000_000
_SHOWN_CHARS = 60
_DUMP_AGAIN = "dump it again with torch._C._distributed_c10d._dump_nccl_trace_json()"


@dataclass(frozen=True, order=True)
class CollectiveKey:
    """Collective in a training: the name of its process group, and its number in the group."""

    group: str
    sequence: int


@dataclass(frozen=True)
class RecordedCollective:
    """Collective as one rank recorded it; -1 means that a time is not known.

    Attributes:
        name: name of the operation, such as `nccl:all_reduce`.
        signature: sizes of its inputs, as text, by which repeated collectives are recognized.
        created_ns: time at which the host launched it, in nanoseconds since 1970.
        duration_ns: time from the start of its kernel to the end.
        completed_ns: time at which the watchdog found that it was over.
    """

    name: str
    signature: str
    created_ns: int
    duration_ns: int
    completed_ns: int


@dataclass(frozen=True)
class RankDump:
    """Dump of one rank.

    Attributes:
        path: file of the dump.
        rank: rank that recorded it.
        collectives: completed collectives.
        pending: collectives that were not over.
        point_to_point: number of sends and receives, which are not read.
    """

    path: Path
    rank: int
    collectives: Mapping[CollectiveKey, RecordedCollective]
    pending: Mapping[CollectiveKey, RecordedCollective]
    point_to_point: int


def read_dump(path: Path, *, only_file: bool) -> RankDump:
    """Read and check the dump of one rank.

    Args:
        path: a .json or .json.gz file.
        only_file: if true, the dump is the only one, and has rank 0 if it does not record its
            rank.

    Raises:
        TraceFormatError: the file is invalid; the error names the byte or the entry.
    """
    chunks, size = open_json_file(path)
    stream = EventStream(path, chunks, size=size, key="entries")
    completed: dict[CollectiveKey, RecordedCollective] = {}
    pending: dict[CollectiveKey, RecordedCollective] = {}
    point_to_point = 0
    for batch in stream.batches():
        for index, entry in enumerate(batch.events, batch.first):
            if not isinstance(entry, Mapping):
                raise _make_error(path, f"entry {index}", f"{_show(entry)} is not an object")
            if entry.get("is_p2p") is True:
                point_to_point += 1
                continue
            key, found = _parse_key(path, index, entry), _parse_collective(path, index, entry)
            known = completed if entry.get("state") == "completed" else pending
            # Operations that were launched together have one number; the first one arrived.
            known.setdefault(key, found)
    return RankDump(
        path,
        _parse_rank(path, stream.metadata, only_file=only_file),
        {key: found for key, found in completed.items() if key not in pending},
        pending,
        point_to_point,
    )


def _parse_rank(path: Path, document: Mapping[str, Json], *, only_file: bool) -> int:
    rank = document.get("rank")
    if type(rank) is int and 0 <= rank < 1 << 31:
        return rank
    named = parse_rank_of_name(path.name)
    if named is None and not only_file:
        problem = "neither the file nor its name contains its rank"
        fix = "name the files rank0.json, rank1.json, ..."
        raise TraceFormatError(str(path), "rank", problem, fix)
    return named or 0


def _parse_key(path: Path, index: int, entry: Mapping[str, Json]) -> CollectiveKey:
    group = entry.get("process_group", entry.get("pg_name"))
    if is_json_list(group) and group:
        group = group[0]
    if not isinstance(group, str):
        raise _make_error(path, f"entry {index}, process_group", f"{_show(group)} is not a name")
    return CollectiveKey(group, _parse_int(path, index, entry, "collective_seq_id", _MAX_SEQUENCE))


def _parse_collective(path: Path, index: int, entry: Mapping[str, Json]) -> RecordedCollective:
    duration = entry.get("duration_ms")
    completed = entry.get("time_discovered_completed_ns")
    return RecordedCollective(
        name=str(entry.get("profiling_name", ""))[:_SHOWN_CHARS],
        signature=str(entry.get("input_sizes", ""))[:_SHOWN_CHARS],
        created_ns=_parse_int(path, index, entry, "time_created_ns", _MAX_TIME_NS),
        duration_ns=(
            round(duration * _NS_PER_MS)
            if type(duration) in {int, float}
            and isinstance(duration, int | float)
            and 0 <= duration <= _MAX_DURATION_MS
            else -1
        ),
        completed_ns=(
            completed if type(completed) is int and 0 <= completed <= _MAX_TIME_NS else -1
        ),
    )


def _parse_int(path: Path, index: int, entry: Mapping[str, Json], key: str, most: int) -> int:
    value = entry.get(key)
    if type(value) is not int or not 0 <= value <= most:
        raise _make_error(
            path, f"entry {index}, {key}", f"{_show(value)} is not an integer from 0 to {most}"
        )
    return value


def _show(value: Json) -> str:
    return repr(value)[:_SHOWN_CHARS]


def _make_error(path: Path, where: str, problem: str) -> TraceFormatError:
    return TraceFormatError(str(path), where, problem, _DUMP_AGAIN)
