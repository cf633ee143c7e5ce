"""Collectives and work on one lane: nothing overlaps, nothing is lost, and only idle time counts as
waiting. Overlaps of a few microseconds are rounding."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from laggard.analysis.formats.import_run.main_lane import (
    MIN_OVERLAP_NS,
    BusyTimes,
    TraceSpan,
    build_main_lane,
    measure_resolution_ns,
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


US = 1000


def busy_times(*intervals_us: tuple[float, float], resolution_ns: int = 0) -> BusyTimes:
    starts, ends = (
        np.array([round(each[place] * US) for each in intervals_us], dtype=np.int64)
        for place in (0, 1)
    )
    return BusyTimes.from_intervals(starts, ends, resolution_ns)


def merged_by_hand(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if merged and start - merged[-1][1] <= MIN_OVERLAP_NS:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


@given(pieces(Phase.FORWARD), moments, st.integers(0, 300))
def test_a_rank_waits_after_its_last_lasting_work(
    work: list[TraceSpan], launch: int, length: int
) -> None:
    intervals = [(span.start_ns * US, span.end_ns * US) for span in work]
    busy = busy_times(*((span.start_ns, span.end_ns) for span in work))
    launch_ns, end_ns = launch * US, (launch + length) * US
    lasting = [
        min(end, end_ns)
        for start, end in merged_by_hand(intervals)
        if min(end, end_ns) - max(start, launch_ns) > MIN_OVERLAP_NS
    ]
    assert busy.exposed_from(launch_ns, end_ns) == max(lasting, default=launch_ns)


def test_a_copy_of_two_microseconds_does_not_end_a_wait() -> None:
    """Just before the recorded end, and amid the wait."""
    assert busy_times((0, 100), (9_998, 10_003)).exposed_from(100 * US, 10_000 * US) == 100 * US
    assert busy_times((0, 100), (5_000, 5_002)).exposed_from(100 * US, 10_000 * US) == 100 * US
    assert busy_times((0, 100)).exposed_from(100 * US, 10_000 * US) == 100 * US


def test_a_lasting_kernel_ends_the_work() -> None:
    busy = busy_times((0, 100), (2_000, 7_000), (9_998, 10_003))
    assert busy.exposed_from(100 * US, 10_000 * US) == 7_000 * US
    # Many short kernels in close succession are work, too.
    series = busy_times(*((2_000 + 5 * n, 2_002 + 5 * n) for n in range(1000)))
    assert series.exposed_from(100 * US, 10_000 * US) == (2_000 + 5 * 999 + 2) * US


@given(st.integers(100, 5000), st.integers(1, 15))
def test_starts_rounded_to_float32_seconds_change_nothing(work_us: int, seconds: int) -> None:
    """The next work begins at the end of the collective, but rounding puts it before the end."""
    begin = seconds * 1_000_000
    exact = np.array([0, work_us, work_us + 8000, work_us + 8000 + 100], dtype=np.float64) + begin
    rounded = (exact / 1e6).astype(np.float32).astype(np.float64) * 1e6
    busy = busy_times((rounded[0], rounded[1]), (rounded[2], rounded[3]))
    launch_ns, end_ns = round(exact[1] * US), round(exact[2] * US)
    assert busy.exposed_from(launch_ns, end_ns) == launch_ns


def test_a_coarse_clock_has_a_larger_tolerance() -> None:
    intervals = ((0.0, 1000.0), (9000.0, 12000.0))
    assert busy_times(*intervals).exposed_from(1000 * US, 10_000 * US) == 10_000 * US
    coarse = busy_times(*intervals, resolution_ns=1000 * US)
    assert coarse.exposed_from(1000 * US, 10_000 * US) == 1000 * US


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


def test_the_resolution_of_stored_seconds() -> None:
    exact = np.array([100.1234567, 300.7654321])
    assert measure_resolution_ns(exact) == 0
    assert measure_resolution_ns(np.zeros(0)) == 0
    rounded = exact.astype(np.float32).astype(np.float64)
    assert measure_resolution_ns(rounded) == 30_518
    assert measure_resolution_ns(np.array([1.7e9], dtype=np.float32).astype(np.float64)) == 10**6
