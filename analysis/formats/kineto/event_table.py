"""Columns of a trace's complete events, filled batch by batch; no event is kept as an object.

Messages name an event by its position in `traceEvents`, counted from 0.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from laggard.analysis.formats.kineto.categories import (
    CATEGORIES,
    GARBAGE_COLLECTION,
    IGNORED,
    MTIA_EVENT,
    OPERATOR,
    PYTHON_CALL,
    UNREAD,
    find_category_code,
    is_device_event,
    normalize_copy_name,
    normalize_mtia_event,
    normalize_operator,
)
from laggard.analysis.formats.kineto.collective_names import is_collective
from laggard.analysis.formats.kineto.encoded_text import EncodedText
from laggard.analysis.formats.kineto.message_sizes import parse_message_sizes
from laggard.analysis.formats.kineto.process_groups import (
    UNLABELED,
    GroupLabel,
    parse_group_label,
)
from laggard.analysis.formats.trace_json import Json
from laggard.analysis.formats.trace_json.event_stream import EventBatch
from laggard.analysis.tables.columns import BoolArray, Columns, IntArray
from laggard.core.errors import TraceFormatError

SmallIntArray = npt.NDArray[np.integer[Any]]

MAX_TIME_NS = 1 << 61
"""Latest time that is accepted; the sum of two such times still fits in 64 bits."""
_MAX_TIME_US = MAX_TIME_NS / 1000
_MIN_GAP_NS = 1_000_000_000
_MEMCPY = CATEGORIES.index("gpu_memcpy")
_DEVICE = tuple(CATEGORIES.index(name) for name in ("kernel", "gpu_memcpy", "gpu_memset"))
_MAX_CATEGORIES = 100
_SHOWN_CHARS = 60
_NAME_HEAD_CHARS, _NAME_TAIL_CHARS = 64, 32
_NO_ARGUMENTS: Mapping[str, Json] = {}


@dataclass(frozen=True)
class ProfilerEvents(Columns):
    """Complete events, in order of their starts.

    `thread` is a thread of the host or a stream of the device. `correlation` joins a kernel with
    the call that launched it, or is -1. `elements` and `bytes` are those of a collective's inputs,
    or 0 if they are not recorded. `label` is the index of a collective's description in
    `RankTrace.labels`, or -1.
    """

    category: SmallIntArray
    name: EncodedText
    thread: SmallIntArray
    start_ns: IntArray
    end_ns: IntArray
    correlation: IntArray
    elements: IntArray
    bytes: IntArray
    label: SmallIntArray

    def started_between(self, start_ns: int, end_ns: int) -> Self:
        """Return the events that began from `start_ns` on and before `end_ns`, without a copy."""
        first, last = np.searchsorted(self.start_ns, (start_ns, end_ns))
        return self.where(np.s_[first:last])

    def launched_by(self, calls: Self) -> tuple[Self, IntArray]:
        """Return the events of the device that some calls launched, and the starts of the calls.

        Args:
            calls: calls of this trace. Of several with one correlation, the last one counts.

        Returns:
            The events in order of their starts, and the start of each one's call, [N].
        """
        device, order, ordered = self._by_correlation
        # The first of the reversed calls is the last one.
        numbers, last = np.unique(calls.correlation[::-1], return_index=True)
        first = np.searchsorted(ordered, numbers, side="left")
        counts = np.searchsorted(ordered, numbers, side="right") - first
        # Row numbers of every correlation's run of events, one run after the other.
        runs = np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        rows, called = order[runs], np.repeat(calls.start_ns[::-1][last], counts)
        in_time = np.argsort(rows)
        return device.where(rows[in_time]), called[in_time]

    @cached_property
    def _by_correlation(self) -> tuple[Self, IntArray, IntArray]:
        """Return the events of the device, their order by correlation, and the correlations."""
        device = self.where(np.isin(self.category, _DEVICE) & (self.correlation >= 0))
        order = np.argsort(device.correlation, kind="stable")
        return device, order, device.correlation[order]


class EventTable:
    """Table of events that grows by batches.

    Args:
        path: file of the trace, for messages.

    Attributes:
        unread: number of events of a device in each unknown category.
        impossible: number of events whose times are impossible; they are left out.
    """

    def __init__(self, path: Path) -> None:
        self.unread: Counter[str] = Counter()
        self.impossible = 0
        self._path = path
        self._codes: dict[str, int] = {}
        self._words: dict[str, int] = {}
        self._communicates: list[bool] = []
        self._threads: dict[object, int] = {}
        self._thread_names: dict[tuple[str, str], int] = {}
        self._category, self._name, self._thread = array("B"), array("i"), array("i")
        self._start_us, self._length_us = array("d"), array("d")
        self._correlation, self._elements, self._bytes = array("q"), array("q"), array("q")
        self._label = array("i")
        self._labels: dict[GroupLabel, int] = {}
        self._collects: dict[str, bool] = {}

    @property
    def labels(self) -> tuple[GroupLabel, ...]:
        """Return the different descriptions of collectives, in the order of their numbers."""
        return tuple(self._labels)

    def add(self, batch: EventBatch) -> None:
        """Add the complete events of a batch.

        Raises:
            TraceFormatError: an event has no name, or no times; the error names it.
        """
        for index, event in enumerate(batch.events, batch.first):
            if not isinstance(event, dict):
                raise self._make_error(
                    f"event {index}", f"{repr(event)[:_SHOWN_CHARS]} is not an object"
                )
            if event.get("ph") != "X":
                continue
            code = self._codes.get(category if type(category := event.get("cat")) is str else "")
            if code is None:
                code = self._find_code(str(event.get("cat", "")))
            if code < IGNORED:
                self._append(index, code, event)
            elif code == UNREAD:
                self._count_unread(event)

    def finish(self, base_ns: int) -> ProfilerEvents:
        """Return all events in order of their starts; the table must not be used afterward.

        Args:
            base_ns: time of the file's zero.
        """
        starts = _to_nanoseconds(self._start_us)
        self._start_us = array("d")
        ends = starts + _to_nanoseconds(self._length_us)
        self._length_us = array("d")
        kept = self._find_possible(starts, ends)
        # Longer events first, so that an enclosing event precedes those inside it.
        order = np.lexsort((-ends, starts))
        if kept is not None:
            order = order[kept[order]]
        codes = np.frombuffer(self._name, dtype=np.int32)[order]
        self._name = array("i")
        return ProfilerEvents(
            category=np.frombuffer(self._category, dtype=np.uint8)[order],
            name=EncodedText(codes, tuple(self._words)),
            thread=np.frombuffer(self._thread, dtype=np.int32)[order],
            start_ns=starts[order] + base_ns,
            end_ns=ends[order] + base_ns,
            correlation=np.frombuffer(self._correlation, dtype=np.int64)[order],
            elements=np.frombuffer(self._elements, dtype=np.int64)[order],
            bytes=np.frombuffer(self._bytes, dtype=np.int64)[order],
            label=np.frombuffer(self._label, dtype=np.int32)[order],
        )

    def _find_code(self, category: str) -> int:
        code = self._codes[category] = find_category_code(category)
        return code

    def _count_unread(self, event: Mapping[str, Json]) -> None:
        arguments, category = event.get("args"), str(event.get("cat", ""))[:_SHOWN_CHARS]
        known = category in self.unread or len(self.unread) < _MAX_CATEGORIES
        if isinstance(arguments, dict) and known and is_device_event(arguments):
            self.unread[category] += 1

    def _append(self, index: int, code: int, event: Mapping[str, Json]) -> None:
        name, start_us, length_us = event.get("name"), event.get("ts"), event.get("dur")
        if not isinstance(name, str):
            raise self._make_error(
                f"event {index}, name", f"{repr(name)[:_SHOWN_CHARS]} is not text"
            )
        if code == PYTHON_CALL and not self._collects_garbage(name):
            return
        if not self._has_times(index, event):
            self.impossible += 1
            return
        arguments = event.get("args")
        if not isinstance(arguments, dict):
            arguments = _NO_ARGUMENTS
        label = parse_group_label(arguments, name) if arguments else None
        if code >= _MEMCPY:
            code, name = _normalize(code, name, arguments)
        word = self._words.get(name)
        if word is None:
            word = self._add_word(name)
        correlation = arguments.get("correlation")
        elements, size = parse_message_sizes(arguments) if self._communicates[word] else (0, 0)
        self._category.append(code)
        self._name.append(word)
        self._thread.append(self._find_thread(event.get("pid"), event.get("tid")))
        self._start_us.append(start_us)  # type: ignore[arg-type]  # checked by _has_times
        self._length_us.append(length_us)  # type: ignore[arg-type]
        self._correlation.append(
            correlation if type(correlation) is int and 0 <= correlation <= MAX_TIME_NS else -1
        )
        self._elements.append(elements)
        self._bytes.append(size)
        self._label.append(
            UNLABELED if label is None else self._labels.setdefault(label, len(self._labels))
        )

    def _collects_garbage(self, name: str) -> bool:
        """Return whether a call of a Python function collects garbage; all others are ignored."""
        found = self._collects.get(name)
        if found is None:
            found = self._collects[name] = GARBAGE_COLLECTION.match(name) is not None
        return found

    def _add_word(self, name: str) -> int:
        short = _shorten_name(name)
        word = self._words.setdefault(short, len(self._words))
        if word == len(self._communicates):
            self._communicates.append(is_collective(name))
        return word

    def _find_thread(self, process: Json, thread: Json) -> int:
        """Return the number of a thread; only pairs of process and thread are unique."""
        key = (process, thread)
        try:
            found = self._threads.get(key)
        except TypeError:  # a list or an object
            key, found = (str(process), str(thread)), None
        if found is None:
            # Process and thread numbers may be text or numbers.
            found = self._thread_names.setdefault(
                (str(process), str(thread)), len(self._thread_names)
            )
            self._threads[key] = found
        return found

    def _has_times(self, index: int, event: Mapping[str, Json]) -> bool:
        """Return False if the times of an event are numbers, but impossible ones.

        Raises:
            TraceFormatError: a time is missing or is not a number.
        """
        possible = True
        for key, least in (("ts", -_MAX_TIME_US), ("dur", 0)):
            value = event.get(key)
            if type(value) is float or type(value) is int:
                # The comparison is false for NaN too.
                possible = possible and least <= value <= _MAX_TIME_US
            elif value is None and key in event:
                # Null stands for a number that was not finite.
                possible = False
            else:
                problem = "is missing" if key not in event else f"{repr(value)[:_SHOWN_CHARS]} is"
                problem += "" if key not in event else " not a number of microseconds"
                raise self._make_error(f"event {index}, {key}", problem)
        return possible

    def _find_possible(self, starts: IntArray, ends: IntArray) -> BoolArray | None:
        """Return a mask of the events that are not at the impossible time zero, or None for all.

        Some versions of the profiler write the time 0 for events that they lost. Zero is impossible
        if it is farther from all other events than their first is from their last.
        """
        others: BoolArray = starts != 0
        if others.all() or not others.any():
            return None
        first_ns, last_ns = int(starts[others].min()), int(ends[others].max())
        if first_ns <= max(last_ns - first_ns, _MIN_GAP_NS):
            return None
        self.impossible += int((~others).sum())
        return others

    def _make_error(self, where: str, problem: str) -> TraceFormatError:
        return TraceFormatError(str(self._path), where, problem, "export the trace again")


def _normalize(code: int, name: str, arguments: Mapping[str, Json]) -> tuple[int, str]:
    """Return the current code and name of an event that another version or device recorded."""
    if code == OPERATOR:
        return normalize_operator(name)
    if code == MTIA_EVENT:
        return normalize_mtia_event(name, arguments)
    return code, normalize_copy_name(name) if code == _MEMCPY else name


def _shorten_name(name: str) -> str:
    """Return the beginning and end of a name, which identify it.

    Names of templated kernels have thousands of characters.
    """
    return (
        name
        if len(name) <= _NAME_HEAD_CHARS + _NAME_TAIL_CHARS
        else name[:_NAME_HEAD_CHARS] + name[-_NAME_TAIL_CHARS:]
    )


def _to_nanoseconds(microseconds: array[float]) -> IntArray:
    """Convert microseconds; whole ones stay exact, since times since 1970 have 51 bits."""
    values = np.frombuffer(microseconds, dtype=np.float64)
    whole = np.floor(values)
    nanoseconds: IntArray = whole.astype(np.int64) * 1000
    nanoseconds += np.rint((values - whole) * 1000).astype(np.int64)
    return nanoseconds
