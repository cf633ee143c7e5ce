"""Collectives and work on one lane: nothing overlaps, nothing is lost, and only idle time counts as
waiting."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from laggard.analysis.formats.import_run.main_lane import (
    BusyTimes,
    TraceSpan,
    build_main_lane,
    split_exposed,
)
from laggard.core.span_schema import Flag, Lane, Phase

moments = st.integers(0, 1000)


@st.composite
def pieces(draw: st.DrawFn, phase: Phase, most: int = 6) -> list[TraceSpan]:
    made = []
    for _ in range(draw(st.integers(0, most))):
        start = draw(moments)
        made.append(TraceSpan(phase, start, start + draw(st.integers(0, 200))))
    return made


def covered(parts: list[TraceSpan] | tuple[TraceSpan, ...], phase: Phase | None = None) -> set[int]:
    return {t for p in parts if phase in (None, p.phase) for t in range(p.start_ns, p.end_ns)}


@given(pieces(Phase.FORWARD), pieces(Phase.COMM))
def test_a_lane_never_overlaps_and_loses_nothing(
    work: list[TraceSpan], meetings: list[TraceSpan]
) -> None:
    lane = build_main_lane(work, meetings)
    assert all(before.end_ns <= after.start_ns for before, after in pairwise(lane))
    assert covered(lane) == covered(work) | covered(meetings)
    assert covered(lane, Phase.COMM) == covered(meetings)
    assert sum(piece.phase is Phase.COMM for piece in lane) == len(meetings)


@given(pieces(Phase.FORWARD), moments, st.integers(0, 300))
def test_held_up_is_when_nothing_is_done(work: list[TraceSpan], launch: int, length: int) -> None:
    busy = BusyTimes.from_intervals(
        np.array([p.start_ns for p in work], dtype=np.int64),
        np.array([p.end_ns for p in work], dtype=np.int64),
    )
    end = launch + length
    begin = busy.exposed_from(launch, end)
    assert launch <= begin <= end
    before = covered([p for p in work if p.start_ns < end])
    assert not covered([TraceSpan(Phase.COMM, begin, end)]) & before
    assert begin in {launch, end} | {p.end_ns for p in work}


def test_a_collective_beside_work_is_told_twice() -> None:
    busy = BusyTimes.from_intervals(np.array([0]), np.array([80_000]))
    exposed, whole = split_exposed(TraceSpan(Phase.COMM, 50_000, 100_000, group=3), busy)
    assert (exposed.start_ns, exposed.end_ns, exposed.group, exposed.lane) == (
        80_000,
        100_000,
        3,
        Lane.MAIN,
    )
    assert (whole.start_ns, whole.end_ns, whole.lane, whole.flags) == (
        50_000,
        100_000,
        Lane.BUCKETS,
        Flag.ASYNC,
    )
    assert split_exposed(TraceSpan(Phase.COMM, 90_000, 100_000), busy) == (
        TraceSpan(Phase.COMM, 90_000, 100_000),
    )
