"""One rank's work and collectives as a lane whose spans never overlap: what it worked on, and where
it was held up by others.

Other tools record a collective from its launch to its end, whatever the rank does meanwhile. What
holds a rank up is the part in which it works on nothing: from its last work before the end of the
collective, or the launch where that is later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from laggard.analysis.tables.columns import IntArray
from laggard.core.span_schema import NO_GROUP, NO_PEER, Flag, Lane, Phase

MIN_OVERLAP_NS = 10_000
"""Less is what clocks and rounding make of pieces that follow each other."""


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """A span of one rank in one step, in nanoseconds of any clock."""

    phase: Phase
    start_ns: int
    end_ns: int
    group: int = NO_GROUP
    bytes: int = 0
    lane: Lane = Lane.MAIN
    peer: int = NO_PEER
    flags: Flag = Flag.NONE


@dataclass(frozen=True)
class BusyTimes:
    """When a rank works, whatever on: starts in order, and the latest end of all that began no
    later, in nanoseconds, [N].
    """

    starts_ns: IntArray
    latest_ends_ns: IntArray

    @classmethod
    def from_intervals(cls, starts_ns: IntArray, ends_ns: IntArray) -> BusyTimes:
        """From starts and ends in any order, which may overlap."""
        order = np.argsort(starts_ns, kind="stable")
        return cls(starts_ns[order], np.maximum.accumulate(ends_ns[order]))

    def exposed_from(self, launch_ns: int, end_ns: int) -> int:
        """From when on the rank does nothing but wait for a collective: between its launch and its
        end; the end if never.
        """
        before = int(np.searchsorted(self.starts_ns, end_ns, side="left")) - 1
        last = int(self.latest_ends_ns[before]) if before >= 0 else launch_ns
        return min(max(launch_ns, last), end_ns)


def split_exposed(collective: TraceSpan, busy: BusyTimes) -> tuple[TraceSpan, ...]:
    """The part of a collective that a rank was held up by, and, where the rest was beside its work,
    all of it on a lane of its own.
    """
    begins_ns = busy.exposed_from(collective.start_ns, collective.end_ns)
    exposed = replace(collective, start_ns=begins_ns)
    if begins_ns - collective.start_ns <= MIN_OVERLAP_NS:
        return (exposed,)
    return exposed, replace(collective, lane=Lane.BUCKETS, flags=Flag.ASYNC)


def build_main_lane(work: Iterable[TraceSpan], waits: Iterable[TraceSpan]) -> tuple[TraceSpan, ...]:
    """Work and meetings on one lane, in order of time.

    Args:
        work: what the rank did; of two pieces that overlap, the one that began first keeps its
            time.
        waits: when the rank was held up; they come before work, and one that began before the
            last had ended begins at its end.

    Returns:
        Pieces that do not overlap; meetings may be empty, work is not.
    """
    waiting = serialize_spans(sorted(waits, key=lambda span: (span.start_ns, span.end_ns)))
    done = serialize_spans(sorted(work, key=lambda span: (span.start_ns, span.end_ns)))
    rest = tuple(span for span in subtract_spans(done, waiting) if span.end_ns > span.start_ns)
    return tuple(sorted((*waiting, *rest), key=lambda span: (span.start_ns, span.end_ns)))


def serialize_spans(spans: Iterable[TraceSpan]) -> tuple[TraceSpan, ...]:
    """Each begins no earlier than the one before it ends; one that ended before is empty, at that
    end.
    """
    placed: list[TraceSpan] = []
    for span in spans:
        start_ns = max(span.start_ns, placed[-1].end_ns) if placed else span.start_ns
        placed.append(replace(span, start_ns=start_ns, end_ns=max(span.end_ns, start_ns)))
    return tuple(placed)


def subtract_spans(spans: Sequence[TraceSpan], holes: Sequence[TraceSpan]) -> Iterator[TraceSpan]:
    """What is left of pieces outside the holes; both are in line. An empty hole cuts a piece in
    two.
    """
    first = 0
    for span in spans:
        while first < len(holes) and holes[first].end_ns <= span.start_ns:
            first += 1
        at_ns = span.start_ns
        for hole in holes[first:]:
            if hole.start_ns >= span.end_ns:
                break
            yield replace(span, start_ns=at_ns, end_ns=max(hole.start_ns, at_ns))
            at_ns = max(at_ns, hole.end_ns)
        yield replace(span, start_ns=at_ns, end_ns=max(span.end_ns, at_ns))
