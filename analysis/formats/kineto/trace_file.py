"""Parser of one rank's torch.profiler trace: Chrome JSON from Kineto, checked and put in columns.

The file is read once, in batches of events, so memory holds the columns and one batch. Only
complete events (`ph: X`) have times; the other events are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from laggard.analysis.formats.kineto.categories import CATEGORIES
from laggard.analysis.formats.kineto.event_table import MAX_TIME_NS, EventTable, ProfilerEvents
from laggard.analysis.formats.kineto.process_groups import (
    GroupConfig,
    GroupLabel,
    parse_group_config,
)
from laggard.analysis.formats.trace_json import Json
from laggard.analysis.formats.trace_json.event_stream import EventStream, is_json_list
from laggard.analysis.formats.trace_json.json_file import open_json_file, parse_rank_of_name
from laggard.core.errors import TraceFormatError

__all__ = [
    "CATEGORIES",
    "FileWithFaults",
    "ProfilerEvents",
    "RankTrace",
    "format_file_notes",
    "read_rank_trace",
]

_MAX_INT32 = np.iinfo(np.int32).max
_MAX_LISTED = 6


@dataclass(frozen=True)
class RankTrace:
    """Trace of one rank.

    `host` and `device` are empty, and `world_size` is 0, if the file does not record them.

    Attributes:
        path: file of the trace.
        rank: rank that recorded it.
        world_size: number of ranks of the training.
        host: name of the rank's host.
        device: name of the rank's device.
        events: complete events of the categories that are read.
        unread_categories: number of events of a device in each category that is not known.
        repairs: one phrase for each kind of fault that was repaired in the file.
        labels: different descriptions of collectives; events refer to them.
        groups: process groups of the rank.
    """

    path: Path
    rank: int
    world_size: int
    host: str
    device: str
    events: ProfilerEvents
    unread_categories: Mapping[str, int] = field(default_factory=dict)
    repairs: tuple[str, ...] = ()
    labels: tuple[GroupLabel, ...] = ()
    groups: GroupConfig = field(default_factory=GroupConfig)


def read_rank_trace(path: Path, *, only_file: bool) -> RankTrace:
    """Read and check the trace of one rank.

    Args:
        path: a .json or .json.gz file.
        only_file: if true, the trace is the only one, and has rank 0 if it does not record its
            rank.

    Raises:
        TraceFormatError: the file is invalid; the error names the byte or the event.
    """
    chunks, size = open_json_file(path)
    stream, table = EventStream(path, chunks, size=size), EventTable(path)
    for batch in stream.batches():
        table.add(batch)
    document = stream.metadata
    events = table.finish(_parse_base_time(path, document))
    if table.impossible and not len(events):
        raise _make_format_error(
            path,
            "",
            f"the times of all its {table.impossible} events are impossible",
            "export the trace again, with another version of torch",
        )
    distributed = document.get("distributedInfo")
    details = distributed if isinstance(distributed, Mapping) else {}
    devices = document.get("deviceProperties")
    first = devices[0] if is_json_list(devices) and devices else {}
    host, world = document.get("host_name"), details.get("world_size")
    return RankTrace(
        path=path,
        rank=_parse_rank(path, details, only_file=only_file),
        world_size=world if isinstance(world, int) and world <= _MAX_INT32 else 0,
        host=host if isinstance(host, str) else "",
        device=str(first.get("name", "")) if isinstance(first, Mapping) else "",
        events=events,
        unread_categories=dict(table.unread),
        repairs=tuple(_describe_repairs(stream, table)),
        labels=table.labels,
        groups=parse_group_config(details),
    )


class FileWithFaults(Protocol):
    """File whose faults are reported, such as a `RankTrace`."""

    @property
    def path(self) -> Path:
        """Return the file."""

    @property
    def unread_categories(self) -> Mapping[str, int]:
        """Return the number of events of a device in each category that is not known."""

    @property
    def repairs(self) -> tuple[str, ...]:
        """Return one phrase for each kind of fault that was repaired."""


def format_file_notes(traces: Sequence[FileWithFaults]) -> tuple[str, ...]:
    """Return one note for each file that was repaired, and one for each unknown category.

    Args:
        traces: traces of all ranks.
    """
    repaired = [
        f"{trace.path.name} was written with faults: {'; '.join(trace.repairs)}."
        for trace in traces
        if trace.repairs
    ]
    if len(repaired) > _MAX_LISTED:
        rest = len(repaired) - _MAX_LISTED
        repaired = [*repaired[:_MAX_LISTED], f"{rest} more files were written with faults."]
    unread: dict[str, int] = {}
    for trace in traces:
        for category, count in trace.unread_categories.items():
            unread[category] = unread.get(category, 0) + count
    return (
        *repaired,
        *(
            f"Events of devices in the unknown category {category!r} were not read: {count}."
            for category, count in sorted(unread.items())[:_MAX_LISTED]
        ),
    )


def _describe_repairs(stream: EventStream, table: EventTable) -> Iterator[str]:
    yield from stream.repairs.describe()
    if table.impossible:
        yield f"events with impossible times, left out: {table.impossible}"


def _parse_base_time(path: Path, document: Mapping[str, Json]) -> int:
    base = document.get("baseTimeNanoseconds", 0)
    if not isinstance(base, int) or abs(base) > MAX_TIME_NS:
        raise _make_format_error(
            path,
            "baseTimeNanoseconds",
            f"{base!r} is not an integer number of nanoseconds since 1970",
            "export the trace again",
        )
    return base


def _parse_rank(path: Path, distributed: Mapping[str, Json], *, only_file: bool) -> int:
    rank = distributed.get("rank")
    if isinstance(rank, int) and 0 <= rank <= _MAX_INT32:
        return rank
    named = parse_rank_of_name(path.name)
    if named is not None:
        return named
    if only_file:
        return 0
    raise _make_format_error(
        path,
        "distributedInfo.rank",
        "neither the file nor its name contains its rank",
        "export after init_process_group, or name the files rank0.json, rank1.json, ...",
    )


def _make_format_error(path: Path, where: str, problem: str, fix: str) -> TraceFormatError:
    return TraceFormatError(str(path), where, problem, fix)
