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

from laggard.analysis.columns import IntArray
from laggard.span_schema import NO_GROUP, NO_PEER, Flag, Lane, Phase

LEAST_BESIDE_NS = 10_000
"""Less is what clocks and rounding make of pieces that follow each other."""


@dataclass(frozen=True, slots=True)
class Piece:
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
class Busy:
    """When a rank works, whatever on: starts in order, and the latest end of all that began no
    later, in nanoseconds, [N].
    """

    starts_ns: IntArray
    latest_ends_ns: IntArray

    @classmethod
    def of(cls, starts_ns: IntArray, ends_ns: IntArray) -> Busy:
        """From starts and ends in any order, which may overlap."""
        order = np.argsort(starts_ns, kind="stable")
        return cls(starts_ns[order], np.maximum.accumulate(ends_ns[order]))

    def held_up_from(self, launch_ns: int, end_ns: int) -> int:
        """From when on the rank does nothing but wait for a collective: between its launch and its
        end; the end if never.
        """
        before = int(np.searchsorted(self.starts_ns, end_ns, side="left")) - 1
        last = int(self.latest_ends_ns[before]) if before >= 0 else launch_ns
        return min(max(launch_ns, last), end_ns)


def held_up(collective: Piece, busy: Busy) -> tuple[Piece, ...]:
    """The part of a collective that a rank was held up by, and, where the rest was beside its work,
    all of it on a lane of its own.
    """
    begins_ns = busy.held_up_from(collective.start_ns, collective.end_ns)
    exposed = replace(collective, start_ns=begins_ns)
    if begins_ns - collective.start_ns <= LEAST_BESIDE_NS:
        return (exposed,)
    return exposed, replace(collective, lane=Lane.BUCKETS, flags=Flag.ASYNC)


def lay_out(work: Iterable[Piece], meetings: Iterable[Piece]) -> tuple[Piece, ...]:
    """Work and meetings on one lane, in order of time.

    Args:
        work: what the rank did; of two pieces that overlap, the one that began first keeps its
            time.
        meetings: when the rank was held up; they come before work, and one that began before the
            last had ended begins at its end.

    Returns:
        Pieces that do not overlap; meetings may be empty, work is not.
    """
    held = in_line(sorted(meetings, key=lambda piece: (piece.start_ns, piece.end_ns)))
    done = in_line(sorted(work, key=lambda piece: (piece.start_ns, piece.end_ns)))
    rest = tuple(piece for piece in cut(done, held) if piece.end_ns > piece.start_ns)
    return tuple(sorted((*held, *rest), key=lambda piece: (piece.start_ns, piece.end_ns)))


def in_line(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """Each begins no earlier than the one before it ends; one that ended before is empty, at that
    end.
    """
    placed: list[Piece] = []
    for piece in pieces:
        start_ns = max(piece.start_ns, placed[-1].end_ns) if placed else piece.start_ns
        placed.append(replace(piece, start_ns=start_ns, end_ns=max(piece.end_ns, start_ns)))
    return tuple(placed)


def cut(pieces: Sequence[Piece], holes: Sequence[Piece]) -> Iterator[Piece]:
    """What is left of pieces outside the holes; both are in line. An empty hole cuts a piece in
    two.
    """
    first = 0
    for piece in pieces:
        while first < len(holes) and holes[first].end_ns <= piece.start_ns:
            first += 1
        at_ns = piece.start_ns
        for hole in holes[first:]:
            if hole.start_ns >= piece.end_ns:
                break
            yield replace(piece, start_ns=at_ns, end_ns=max(hole.start_ns, at_ns))
            at_ns = max(at_ns, hole.end_ns)
        yield replace(piece, start_ns=at_ns, end_ns=max(piece.end_ns, at_ns))
