"""Parser of Horovod's timeline: Chrome JSON in which a process is a tensor.

The coordinator (rank 0) writes the file. For each tensor it records the negotiation, from the
first rank that is ready to the last, with a tick for each rank, and then the operation:

    B NEGOTIATE_ALLREDUCE, X "1", X "0", E, B ALLREDUCE, B (activity), E, ..., E

Messages name an event by its position in the file, counted from 0.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from laggard.analysis.formats.trace_json import Json
from laggard.analysis.formats.trace_json.event_stream import EventStream
from laggard.analysis.formats.trace_json.json_file import open_json_file
from laggard.core.errors import TraceFormatError

_NEGOTIATE = "NEGOTIATE_"
_MAX_RANK = 1 << 20
_RANK = re.compile(r"[0-9]{1,7}")
_MAX_TIME_US = 1 << 51
_SHOWN_CHARS = 60


@dataclass
class Negotiation:
    """Negotiation of one operation on one tensor, and the operation; times in microseconds.

    Attributes:
        tensor: number of the tensor.
        kind: kind of the operation, such as `ALLREDUCE`.
        ready_us: time at which the coordinator knew that a rank was ready, by rank.
        end_us: end of the operation, or of the negotiation as long as no operation follows.
    """

    tensor: int
    kind: str
    ready_us: dict[int, int] = field(default_factory=dict)
    end_us: int = -1


@dataclass
class HorovodTimeline:
    """All complete negotiations, in the order of their ends.

    Attributes:
        negotiations: negotiations that ended.
        unnegotiated: operations without a negotiation, which the response cache answered.
    """

    negotiations: list[Negotiation] = field(default_factory=list)
    unnegotiated: int = 0


def read_timeline(path: Path) -> HorovodTimeline:
    """Read and check a timeline, whose end may be missing.

    Raises:
        TraceFormatError: the file is invalid; the error names the byte or the event.
    """
    chunks, size = open_json_file(path)
    stream = EventStream(path, chunks, size=size, key="", may_be_open=True)
    parser = _TimelineParser(path)
    for batch in stream.batches():
        for index, event in enumerate(batch.events, batch.first):
            if not isinstance(event, Mapping):
                raise parser.make_error(index, f"{repr(event)[:_SHOWN_CHARS]} is not an object")
            parser.read_event(index, event)
    return parser.timeline


class _TimelineParser:
    """State of every tensor: its open negotiation, and the depth of its operation."""

    def __init__(self, path: Path) -> None:
        self.timeline = HorovodTimeline()
        self._path = path
        self._open: dict[int, Negotiation] = {}
        self._negotiated: dict[int, Negotiation] = {}
        self._depth: Counter[int] = Counter()

    def read_event(self, index: int, event: Mapping[str, Json]) -> None:
        phase = event.get("ph")
        # A tuple, because any value of JSON may be there, and lists cannot be looked up in a set.
        if phase not in ("B", "E", "X"):
            return
        tensor, at_us = self._read_int(index, event, "pid"), self._read_int(index, event, "ts")
        name = event.get("name")
        if phase == "B":
            self._begin(tensor, str(name))
        elif phase == "X":
            self._add_tick(index, tensor, name, at_us)
        else:
            self._end(tensor, at_us)

    def _begin(self, tensor: int, name: str) -> None:
        if name.startswith(_NEGOTIATE):
            self._open[tensor] = Negotiation(tensor, name.removeprefix(_NEGOTIATE))
            return
        if not self._depth[tensor] and tensor not in self._negotiated:
            self.timeline.unnegotiated += 1
        self._depth[tensor] += 1

    def _add_tick(self, index: int, tensor: int, name: Json, at_us: int) -> None:
        negotiation = self._open.get(tensor)
        if negotiation is None:
            return
        rank = int(name) if isinstance(name, str) and _RANK.fullmatch(name) else -1
        if not 0 <= rank <= _MAX_RANK:
            raise self.make_error(index, f"name {repr(name)[:_SHOWN_CHARS]} is not a rank")
        negotiation.ready_us.setdefault(rank, at_us)

    def _end(self, tensor: int, at_us: int) -> None:
        if tensor in self._open:
            negotiation = self._open.pop(tensor)
            negotiation.end_us = at_us
            self._negotiated[tensor] = negotiation
            self.timeline.negotiations.append(negotiation)
        elif self._depth[tensor]:
            self._depth[tensor] -= 1
            if not self._depth[tensor] and tensor in self._negotiated:
                self._negotiated.pop(tensor).end_us = at_us

    def _read_int(self, index: int, event: Mapping[str, Json], key: str) -> int:
        value = event.get(key)
        if type(value) is not int or not 0 <= value <= _MAX_TIME_US:
            raise self.make_error(
                index, f"{key} {repr(value)[:_SHOWN_CHARS]} is not an integer from 0 to 2^51"
            )
        return value

    def make_error(self, index: int, problem: str) -> TraceFormatError:
        return TraceFormatError(
            str(self._path), f"event {index}", problem, "give an unchanged Horovod timeline"
        )
