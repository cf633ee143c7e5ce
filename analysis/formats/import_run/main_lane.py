"""Main lane of one rank: its work and its waits for collectives, as spans that never overlap.

Other tools record a collective from its launch to its end, whatever the rank does meanwhile. It
blocks the rank only while the rank works on nothing. That part begins at the end of the last
lasting work before the collective's end, or at the launch if that is later. Work that overlaps the
collective by a few microseconds does not count, because clocks round and short operations occur
amid waits.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from laggard.analysis.tables.columns import FloatArray, IntArray
from laggard.core.span_schema import NO_GROUP, NO_PEER, Flag, Lane, Phase

MIN_OVERLAP_NS = 10_000
"""Longest overlap that does not count; clocks and rounding make consecutive spans overlap by less.

Gaps between operations that are no longer than this belong to the work around them."""


MAX_RESOLUTION_NS = 1_000_000


def measure_resolution_ns(seconds: FloatArray) -> int:
    """Return the resolution of times that were stored as 32-bit seconds; 0 for finer times.

    Args:
        seconds: times in seconds, of which many have digits that 32 bits cannot hold.
    """
    stored = seconds.astype(np.float32)
    if not len(seconds) or (stored != seconds).any():
        return 0
    return min(round(float(np.spacing(np.abs(stored).max())) * 1e9), MAX_RESOLUTION_NS)


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """Span of one rank in one step, in nanoseconds of any clock."""

    phase: Phase
    start_ns: int
    end_ns: int
    group: int = NO_GROUP
    bytes: int = 0
    lane: Lane = Lane.MAIN
    peer: int = NO_PEER
    flags: Flag = Flag.NONE

    def move(self, start_ns: int, end_ns: int) -> TraceSpan:
        """Return the span at another time; a trace has so many spans that `replace` is too slow."""
        if start_ns == self.start_ns and end_ns == self.end_ns:
            return self
        return TraceSpan(
            self.phase, start_ns, end_ns, self.group, self.bytes, self.lane, self.peer, self.flags
        )


@dataclass(frozen=True)
class BusyTimes:
    """Times at which a rank works on anything, as disjoint intervals in nanoseconds.

    Attributes:
        starts_ns: starts of the intervals, ascending, [N].
        ends_ns: ends of the intervals, ascending, [N].
        tolerance_ns: longest overlap of an interval and a collective that does not count.
    """

    starts_ns: IntArray
    ends_ns: IntArray
    tolerance_ns: int = MIN_OVERLAP_NS

    @classmethod
    def from_intervals(
        cls, starts_ns: IntArray, ends_ns: IntArray, resolution_ns: int = 0
    ) -> BusyTimes:
        """Build the busy times from starts and ends in any order, which may overlap.

        Intervals whose gap is at most `MIN_OVERLAP_NS` are merged, so that a series of short
        operations counts as one.

        Args:
            starts_ns: starts of the work, [N].
            ends_ns: ends of the work, [N].
            resolution_ns: resolution of the clock, if it is known.
        """
        order = np.argsort(starts_ns, kind="stable")
        starts, latest = starts_ns[order], np.maximum.accumulate(ends_ns[order])
        apart = starts[1:] - latest[:-1] > MIN_OVERLAP_NS
        first, last = np.append(True, apart), np.append(apart, True)
        if not len(starts):
            first = last = np.zeros(0, dtype=np.bool_)
        return cls(starts[first], latest[last], max(MIN_OVERLAP_NS, resolution_ns))

    def exposed_from(self, launch_ns: int, end_ns: int) -> int:
        """Return the time from which the rank only waits for a collective.

        It is between the launch and the end, and equals the end if the rank never waits.
        """
        at = int(np.searchsorted(self.starts_ns, end_ns - self.tolerance_ns, side="left")) - 1
        # Intervals are disjoint, so the last one that began early enough ends last.
        while at >= 0 and self.ends_ns[at] > launch_ns:
            start, end = int(self.starts_ns[at]), min(int(self.ends_ns[at]), end_ns)
            if end - max(start, launch_ns) > self.tolerance_ns:
                return end
            at -= 1
        return launch_ns


def split_exposed(collective: TraceSpan, busy: BusyTimes) -> tuple[TraceSpan, ...]:
    """Return the part of a collective that blocks the rank.

    If the rest overlaps work by more than `MIN_OVERLAP_NS`, the whole collective follows on a lane
    of its own.
    """
    begins_ns = busy.exposed_from(collective.start_ns, collective.end_ns)
    exposed = collective.move(begins_ns, collective.end_ns)
    if begins_ns - collective.start_ns <= MIN_OVERLAP_NS:
        return (exposed,)
    return exposed, replace(collective, lane=Lane.BUCKETS, flags=Flag.ASYNC)


def to_post(message: TraceSpan, work: Sequence[TraceSpan]) -> TraceSpan:
    """Return the moment at which a rank has a message ready, as an empty span without waiting.

    It is the end of the last work before the message, because the message has left even if the
    rank starts to wait for something else at this time.

    Args:
        message: message of a rank, from its launch to its end.
        work: work of the rank, in order.
    """
    ready_ns = find_work_end(work, message.start_ns) or message.start_ns
    return replace(message, start_ns=ready_ns, end_ns=ready_ns, flags=message.flags | Flag.ASYNC)


def find_work_end(work: Sequence[TraceSpan], moment_ns: int) -> int:
    """Return the end of the last work before a moment, or the moment itself amid work.

    It is 0 if there is no work before the moment.

    Args:
        work: work of a rank, in order.
        moment_ns: a time.
    """
    at = bisect_right(work, moment_ns, key=lambda span: span.start_ns) - 1
    return min(work[at].end_ns, moment_ns) if at >= 0 else 0


def to_receipt(message: TraceSpan, work: Sequence[TraceSpan]) -> TraceSpan:
    """Return the part of a message that blocks its rank, which is empty if it came during work.

    Args:
        message: message of a rank, from its launch to its end.
        work: work of the rank before it needs the message, in order.
    """
    needed_ns = max(work[-1].end_ns, message.start_ns) if work else message.start_ns
    return message.move(needed_ns, max(message.end_ns, needed_ns))


def build_main_lane(work: Iterable[TraceSpan], waits: Iterable[TraceSpan]) -> tuple[TraceSpan, ...]:
    """Return work and waits on one lane, in order of time.

    Args:
        work: work of the rank. If two spans overlap, the one that began first keeps its time.
        waits: waits of the rank, which take precedence over work. A wait that began before the
            last one ended begins at that end.

    Returns:
        Spans that do not overlap; waits may be empty, work is not.
    """
    # Waits take precedence, so work is cut around them.
    waiting = serialize_spans(sorted(waits, key=lambda span: (span.start_ns, span.end_ns)))
    done = serialize_spans(sorted(work, key=lambda span: (span.start_ns, span.end_ns)))
    rest = tuple(span for span in subtract_spans(done, waiting) if span.end_ns > span.start_ns)
    return tuple(sorted((*waiting, *rest), key=lambda span: (span.start_ns, span.end_ns)))


def serialize_spans(spans: Iterable[TraceSpan]) -> tuple[TraceSpan, ...]:
    """Return spans that each begin no earlier than the one before ends.

    A span that ended before that is empty, at that end.
    """
    placed: list[TraceSpan] = []
    for span in spans:
        start_ns = max(span.start_ns, placed[-1].end_ns) if placed else span.start_ns
        placed.append(span.move(start_ns, max(span.end_ns, start_ns)))
    return tuple(placed)


def subtract_spans(spans: Sequence[TraceSpan], holes: Sequence[TraceSpan]) -> Iterator[TraceSpan]:
    """Yield the parts of spans outside the holes; both must be in order and without overlaps.

    An empty hole cuts a span in two.
    """
    first = 0
    for span in spans:
        while first < len(holes) and holes[first].end_ns <= span.start_ns:
            first += 1
        at_ns = span.start_ns
        for hole in holes[first:]:
            if hole.start_ns >= span.end_ns:
                break
            yield span.move(at_ns, max(hole.start_ns, at_ns))
            at_ns = max(at_ns, hole.end_ns)
        yield span.move(at_ns, max(span.end_ns, at_ns))
