"""What ranks did when: shares against brute force, and against the time split that the replay
makes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.analysis.evaluate.synthetic.run_generator import TraceSpec, generate_run
from laggard.analysis.report.figures.timeline import paint_shares
from laggard.analysis.report.style import palette
from laggard.analysis.report.timeline.activity import STACK_ORDER, RankActivity, build_activity
from laggard.analysis.tables.columns import FloatArray
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.build_timeline import build_timeline
from laggard.analysis.tables.timelines.time_split import get_tier_placement, split_time
from laggard.core.span_schema import Flag, Lane, Phase

COMPUTE = ("h2d", "forward", "backward", "optimizer")


def seconds_of(activity: RankActivity, world: int, *labels: str) -> FloatArray:
    """Seconds of some kinds over the whole run, by rank."""
    shares = activity.compute_shares(np.arange(world), 0.0, activity.end_ns, 1)[0]
    chosen = [index for index, paint in enumerate(activity.kinds) if paint.label in labels]
    total: FloatArray = shares[:, chosen].sum(axis=1) * activity.end_ns / 1e9
    return total


def test_sums_are_those_of_the_time_split(quickstart_run: RunData) -> None:
    activity, world = build_activity(quickstart_run), quickstart_run.world_size
    split = split_time(build_timeline(quickstart_run), get_tier_placement(quickstart_run))
    assert seconds_of(activity, world, "fetch") == pytest.approx(split.fetch_s)
    assert seconds_of(activity, world, "prep") == pytest.approx(split.prep_s)
    assert seconds_of(activity, world, *COMPUTE) == pytest.approx(split.compute_s)
    assert seconds_of(activity, world, "wait") == pytest.approx(split.wait_s)
    assert seconds_of(activity, world, "transfer") == pytest.approx(
        split.transfer_s, abs=1e-3 * split.total_s[0]
    )


@given(
    st.lists(st.tuples(st.integers(-20, 200), st.integers(0, 60)), min_size=1, max_size=30),
    st.integers(0, 100),
    st.integers(1, 150),
    st.integers(1, 7),
)
def test_shares_are_what_counting_gives(
    pieces: list[tuple[int, int]], first: int, length: int, cells: int
) -> None:
    """Of overlapping transfers beside the training too: each nanosecond counts once."""
    one = generate_run(TraceSpec(steps=1, warm_up_steps=0)).spans.where(
        np.zeros(len(pieces), dtype=np.int64)
    )
    starts, lengths = (np.array(column, dtype=np.int64) for column in zip(*pieces, strict=True))
    spans = replace(
        one,
        lane=np.full(len(pieces), int(Lane.BACKGROUND)),
        phase=np.full(len(pieces), Phase.COMM.code),
        group=np.full(len(pieces), -1),
        start_ns=starts,
        dur_ns=lengths,
        flags=np.zeros(len(pieces), dtype=np.int64),
    )
    activity = build_activity(replace(generate_run(TraceSpec(steps=1)), spans=spans))
    busy = np.zeros(400, dtype=bool)
    for start, took in pieces:
        busy[max(start, 0) : max(start + took, 0)] = True
    assert activity.has_background == busy.any()
    if not busy.any():
        return
    found = activity.compute_shares(np.array([spans.rank[0]]), first, first + length * cells, cells)
    counted = [
        busy[first + length * c : first + length * (c + 1)].sum() / length for c in range(cells)
    ]
    assert found[:, 0, -1] == pytest.approx(counted)


def test_what_was_cut_off_is_left_out(quickstart_run: RunData) -> None:
    spans = quickstart_run.spans
    cut = replace(spans, flags=np.where(spans.rank == 3, int(Flag.TRUNCATED), spans.flags))
    activity = build_activity(replace(quickstart_run, spans=cut))
    assert 3 not in {rank for rank, _ in activity.intervals_by_kind}
    assert not activity.compute_shares(np.array([3]), 0.0, activity.end_ns, 5).any()


def test_colours_are_stacked_in_proportion(quickstart_run: RunData) -> None:
    activity = RankActivity(
        100, (palette.FETCH, palette.TRANSFER), has_background=False, intervals_by_kind={}
    )
    image = paint_shares(activity, np.array([[[0.25, 0.5]], [[0.0, 1.0]]]))
    bar = image[2:18]
    orange, green = (0xD5, 0x5E, 0x00), (0x00, 0x9E, 0x73)
    assert [tuple(pixel) for pixel in bar[:, 0]] == [(255, 255, 255)] * 4 + [orange] * 8 + [
        green
    ] * 4
    assert {tuple(pixel) for pixel in bar[:, 1]} == {orange}
    assert len(STACK_ORDER) == len(set(STACK_ORDER))
