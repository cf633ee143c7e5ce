"""Parser of one list of events in a JSON file of any size, in batches.

A batch ends at a border between two events. A border is first guessed: the last `},{` in the
buffer. The guess needs no check of its own. A batch that ends inside a string or an inner list has
unbalanced quotes or brackets, so it is not valid JSON. If a batch is invalid, the text is scanned
exactly, repaired, and parsed again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeGuard

import orjson

from laggard.analysis.formats.trace_json import Json
from laggard.analysis.formats.trace_json.repair import RepairCounts, repair_json
from laggard.core.errors import TraceFormatError

MAX_METADATA_BYTES = 64 << 20
"""Largest part of a file before its list of events, and after it, in bytes."""
MAX_EVENT_BYTES = 16 << 20
"""Largest single event, in bytes."""
_MAX_GUESSES = 8
_MAX_SPACE = 256
_COPY_AGAIN = "copy the whole file again"
_EXPORT_AGAIN = "export the trace again"
_SCANNED = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[][{}]', re.DOTALL)
"""A string, which may be cut by the end of the text, or a bracket."""


@dataclass(frozen=True)
class EventBatch:
    """Consecutive elements of the list; `first` is the position of the first one."""

    first: int
    events: Sequence[Json]


@dataclass(frozen=True)
class _Elements:
    """Ends of the complete elements of a text, and the position of the list's `]`, or None."""

    ends: Sequence[int]
    close: int | None


class EventStream:
    """List of events in a JSON document, which is read once.

    Args:
        path: file, for messages.
        chunks: content of the file.
        size: number of bytes of the content, or 0 if it is unknown.
        key: key of the list in the document; if empty, the document itself is the list.
        may_be_open: whether the list may lack its end, as in logs that are written continuously.
    """

    def __init__(
        self,
        path: Path,
        chunks: Iterator[bytes],
        *,
        size: int = 0,
        key: str = "traceEvents",
        may_be_open: bool = False,
    ) -> None:
        self.repairs = RepairCounts()
        self._path = path
        self._chunks = chunks
        self._size = size
        self._key = key
        self._may_be_open = may_be_open
        self._buffer = b""
        self._offset = 0
        self._count = 0
        self._metadata: Mapping[str, Json] = {}

    @property
    def metadata(self) -> Mapping[str, Json]:
        """Return the rest of the document; it is empty until all batches have been read."""
        return self._metadata

    def batches(self) -> Iterator[EventBatch]:
        """Yield all events in the order of the file.

        Raises:
            TraceFormatError: the document is invalid or truncated, or has no such list.
        """
        head = self._find_list()
        closed = False
        while not closed:
            events, closed = self._take_events()
            if events:
                yield EventBatch(self._count, events)
                self._count += len(events)
        if self._key:
            self._metadata = self._read_metadata(head)

    def _fill(self) -> bool:
        chunk = next(self._chunks, b"")
        self._buffer += chunk
        return bool(chunk)

    def _drop(self, count: int) -> None:
        self._buffer = self._buffer[count:]
        self._offset += count

    def _find_list(self) -> bytes:
        """Move to the first event, and return the text before it."""
        start = (
            re.compile(rb'"%s"\s*+:\s*+\[' % re.escape(self._key.encode()))
            if self._key
            else re.compile(rb"\A\s*+\[")
        )
        searched = 0
        while True:
            more = self._fill()
            found = start.search(self._buffer, searched if self._key else 0)
            if found:
                head = self._buffer[: found.end()]
                self._drop(found.end())
                return head
            if not more or len(self._buffer) > MAX_METADATA_BYTES:
                self._refuse_document(complete=not more)
            searched = max(0, len(self._buffer) - _MAX_SPACE)

    def _refuse_document(self, *, complete: bool) -> None:
        """Raise the error of a document without the list.

        Raises:
            TraceFormatError: always.
        """
        name = f"list {self._key}" if self._key else "list of events"
        if not complete:
            problem = f"it has no {name} in its first {MAX_METADATA_BYTES >> 20} MiB"
            raise self._make_error("", problem, "give an unchanged file of the profiler")
        document = self._parse_document(self._buffer, 0)
        if self._key and not isinstance(document, Mapping):
            problem = f"it is not a JSON object with {self._key}"
            raise self._make_error("", problem, "give a file from prof.export_chrome_trace(...)")
        problem, fix = f"it has no {name}", "give an unchanged file of the profiler"
        raise self._make_error("", problem, fix)

    def _take_events(self) -> tuple[Sequence[Json], bool]:
        """Return the next events, and whether the list has ended."""
        more = self._fill()
        if more:
            border = _find_last_border(self._buffer)
            events = _try_parse(self._buffer[:border]) if border > 0 else None
            if events is not None:
                self._drop(border + 1)
                return events, False
        else:
            for close in _guess_closes(self._buffer):
                events = _try_parse(self._buffer[:close])
                if events is not None:
                    self._drop(close + 1)
                    return events, True
        return self._take_exactly(more=more)

    def _take_exactly(self, *, more: bool) -> tuple[Sequence[Json], bool]:
        found = _scan_elements(self._buffer)
        if found.close is not None:
            return self._close_list(found), True
        if not more:
            return self._take_open_end(found), True
        # An event is complete only if its comma has been read too.
        ends = [end for end in found.ends[-2:] if self._buffer[end:].lstrip()[:1] == b","]
        if not ends:
            self._require_event_size()
            return (), False
        events = self._parse_elements(self._buffer[: ends[-1]], found.ends)
        self._drop(self._buffer.index(b",", ends[-1]) + 1)
        return events, False

    def _close_list(self, found: _Elements) -> Sequence[Json]:
        assert found.close is not None
        text = self._buffer[: found.close].rstrip()
        if text.endswith(b","):
            self.repairs.commas += 1
            text = text[:-1]
        events = self._parse_elements(text, found.ends)
        self._drop(found.close + 1)
        return events

    def _take_open_end(self, found: _Elements) -> Sequence[Json]:
        """Return the last complete events of a list without an end."""
        if not self._may_be_open:
            raise self._make_truncation_error(len(self._buffer))
        return self._parse_elements(self._buffer[: max(found.ends, default=0)], found.ends)

    def _require_event_size(self) -> None:
        if len(self._buffer) > MAX_EVENT_BYTES:
            problem = f"event {self._count} has more than {MAX_EVENT_BYTES >> 20} MiB"
            raise self._make_error(f"byte {self._offset}", problem, _EXPORT_AGAIN)

    def _parse_elements(self, text: bytes, ends: Sequence[int]) -> Sequence[Json]:
        events = _try_parse(text)
        if events is not None:
            return events
        repaired, counts = repair_json(text)
        events = _try_parse(repaired)
        if events is None:
            raise self._locate_error(text, ends)
        self.repairs.add(counts)
        return events

    def _locate_error(self, text: bytes, ends: Sequence[int]) -> TraceFormatError:
        """Return the error of the first element that is invalid even after a repair."""
        starts = [0, *(end for end in ends if end < len(text))]
        for number, (start, end) in enumerate(pairwise([*starts, len(text)])):
            element = text[start:end]
            # The comma before an element becomes a space, so that positions stay the same.
            if number and element.lstrip().startswith(b","):
                element = element.replace(b",", b" ", 1)
            elif number:
                at, reason = len(element) - len(element.lstrip()), "expected a comma"
                return self._make_event_error(start + at, number, reason)
            try:
                orjson.loads(b"[" + repair_json(element)[0] + b"]")
            except orjson.JSONDecodeError:
                at, reason = _find_error(b"[" + element + b"]")
                return self._make_event_error(start + max(at - 1, 0), number, reason)
        return self._make_event_error(0, 0, "unknown fault")

    def _make_event_error(self, at: int, number: int, reason: str) -> TraceFormatError:
        where = f"byte {self._offset + at}, event {self._count + number}"
        return self._make_error(where, _describe_fault(reason), _EXPORT_AGAIN)

    def _read_metadata(self, head: bytes) -> Mapping[str, Json]:
        tail_at = self._offset
        while self._fill():
            if len(self._buffer) > MAX_METADATA_BYTES:
                problem = f"more than {MAX_METADATA_BYTES >> 20} MiB follow the list of events"
                raise self._make_error(f"byte {tail_at}", problem, _EXPORT_AGAIN)
        # The element 0 shows that the list belongs to the document itself, not to an inner object.
        document = self._parse_document(head + b"0]" + self._buffer, tail_at - len(head) - 2)
        if not isinstance(document, Mapping) or document.get(self._key) != [0]:
            problem = f"it has no list {self._key} of its own"
            raise self._make_error("", problem, "give an unchanged file of the profiler")
        return document

    def _parse_document(self, text: bytes, skipped: int) -> Json:
        """Parse a whole document.

        Args:
            text: the document.
            skipped: number of bytes of the file that are missing in the text, before its end.
        """
        try:
            document: Json = orjson.loads(text)
        except orjson.JSONDecodeError:
            repaired, counts = repair_json(text)
            try:
                document = orjson.loads(repaired)
            except orjson.JSONDecodeError:
                raise self._make_document_error(text, skipped) from None
            self.repairs.add(counts)
        return document

    def _make_document_error(self, text: bytes, skipped: int) -> TraceFormatError:
        try:
            text.decode()
        except UnicodeDecodeError as error:
            return self._make_error(
                f"byte {error.start}",
                "the file is not UTF-8 text",
                "give a .json or .json.gz file from torch.profiler",
            )
        at, reason = _find_error(text)
        # An error at the very end means a truncated file.
        if at >= len(text.rstrip()) or "end of" in reason:
            return self._make_truncation_error(len(text) + max(skipped, 0))
        return self._make_error(
            self._format_byte(at + skipped if skipped else at),
            _describe_fault(reason),
            _EXPORT_AGAIN,
        )

    def _make_truncation_error(self, length: int) -> TraceFormatError:
        where = self._size or self._offset + length
        return self._make_error(self._format_byte(where), "the JSON is truncated", _COPY_AGAIN)

    def _format_byte(self, at: int) -> str:
        return f"byte {at} of {self._size}" if self._size else f"byte {at}"

    def _make_error(self, where: str, problem: str, fix: str) -> TraceFormatError:
        return TraceFormatError(str(self._path), where, problem, fix)


def is_json_list(value: Json) -> TypeGuard[Sequence[Json]]:
    """Return True if a value of a JSON document is a list."""
    return isinstance(value, list)


def _try_parse(elements: bytes) -> list[Json] | None:
    try:
        parsed: list[Json] = orjson.loads(b"[" + elements + b"]")
    except orjson.JSONDecodeError:
        return None
    return parsed


def _find_error(text: bytes) -> tuple[int, str]:
    """Return the byte and the description of the first error of an invalid text."""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as error:
        # The decoder counts characters.
        at = len(error.doc[: error.pos].encode(errors="surrogatepass"))
        return at, error.msg
    return 0, "invalid"


def _describe_fault(reason: str) -> str:
    if "depth" in reason or "ecursion" in reason:
        return "its JSON is nested too deeply"
    return f"invalid JSON ({reason})"


def _find_last_border(text: bytes) -> int:
    """Return the position of the comma in the last `},{`, or -1."""
    at = len(text)
    while (at := text.rfind(b"{", 0, at)) > 0:
        before = text[max(0, at - _MAX_SPACE) : at].rstrip()
        if before.endswith(b",") and before[:-1].rstrip().endswith(b"}"):
            return text.rindex(b",", 0, at)
    return -1


def _guess_closes(text: bytes) -> Iterator[int]:
    """Yield positions of `]`, from the end, where the list may end."""
    at = len(text)
    for _ in range(_MAX_GUESSES):
        at = text.rfind(b"]", 0, at)
        if at < 0:
            return
        yield at


def _scan_elements(text: bytes) -> _Elements:
    """Find the elements of a list whose opening bracket is not in the text."""
    ends: list[int] = []
    depth = 0
    for token in _SCANNED.finditer(text):
        mark = text[token.start()]
        if mark in b"[{":
            depth += 1
        elif mark in b"]}":
            if depth == 0:
                return _Elements(ends, token.start())
            depth -= 1
            if depth == 0:
                ends.append(token.end())
    return _Elements(ends, None)
