"""Every figure, of ordinary and of odd runs, at both widths: drawn, inside its canvas, and saying
what is so."""

from __future__ import annotations

import functools
import io
import itertools
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from matplotlib.figure import Figure
from matplotlib.text import Text

from laggard.analysis.evaluate.synthetic.run_generator import (
    QUIET,
    Injection,
    Tier,
    TraceSpec,
    generate_run,
)
from laggard.analysis.findings.analysis_result import AnalysisResult, analyze_lockstep
from laggard.analysis.report.figures import rounds, task_accuracy, tokens
from laggard.analysis.report.figures.drawing import draw_figure, draw_svg, save_figures
from laggard.analysis.report.figures.ecdf import MOST_POINTS, compute_ecdf
from laggard.analysis.report.figures.figure_kind import FigureKind
from laggard.analysis.report.figures.gantt import (
    build_step_bars,
    find_last_arrival,
)
from laggard.analysis.report.figures.heatmap import (
    MOST_COLUMNS,
    bin_steps,
    build_outlines,
    label_apart,
    select_finding_rows,
)
from laggard.analysis.report.figures.progress import build_accuracy_curve, build_loss_curve
from laggard.analysis.report.figures.registry import FIGURE_KINDS
from laggard.analysis.report.style.canvas import NARROW_IN, WIDE_IN, house_style, to_svg
from laggard.analysis.report.style.labels import format_rank_labels, sanitize_label, select_ranks
from laggard.analysis.report.style.palette import TRANSFER, WAIT
from laggard.analysis.report.timeline.typical_steps import find_median_step
from laggard.analysis.tables.columns import FloatArray
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.step_clock import get_step_clock
from laggard.core.span_schema import NO_GROUP, Lane, Phase

OF_ALL_RUNS = tuple(
    kind
    for kind in FIGURE_KINDS
    if kind not in (task_accuracy.FIGURE, rounds.FIGURE, tokens.FIGURE)
)
"""Figures that a run has without a stream and without rounds."""
WIDTHS = (WIDE_IN, NARROW_IN)
SMALLEST_POINTS = 8.0


@functools.cache
def odd_runs() -> dict[str, RunData]:
    plain = TraceSpec(steps=40)
    names = ["$\\frac{1}{0$", "边缘主机", "edge-" + "x" * 90, 'a"b<c&d', "", "h", "h", "i"]
    named = generate_run(plain)
    no_eval = generate_run(replace(plain, evaluate_every=0))
    return {
        "one rank": generate_run(TraceSpec(tiers=(Tier("cloud", 1),), steps=12)),
        "one step": generate_run(TraceSpec(steps=1, warm_up_steps=0)),
        "long": generate_run(
            TraceSpec(steps=1_200, injections=(Injection("compute", 3.0, 400, 700, rank=0),))
        ),
        "many ranks": generate_run(
            TraceSpec(tiers=(Tier("cloud", 10), Tier("edge", 35, 3.0)), steps=25)
        ),
        "odd names": replace(
            named, hosts=tuple(replace(h, host=n) for h, n in zip(named.hosts, names, strict=True))
        ),
        "no tiers": replace(named, hosts=tuple(replace(h, tier="") for h in named.hosts)),
        "no evaluation": replace(
            no_eval, steps=replace(no_eval.steps, loss=np.full(len(no_eval.steps), np.nan))
        ),
        "no noise": generate_run(replace(plain, noise=QUIET)),
    }


ODD = (
    "one rank",
    "one step",
    "long",
    "many ranks",
    "odd names",
    "no tiers",
    "no evaluation",
    "no noise",
)


@functools.cache
def odd_analysis(name: str) -> AnalysisResult:
    return analyze_lockstep(odd_runs()[name])


def assert_all_is_inside(figure: Figure) -> None:
    with house_style():
        figure.canvas.draw()
        box = figure.get_tightbbox()
        assert box.x0 >= -0.02
        assert box.y0 >= -0.02
        assert box.x1 <= figure.get_figwidth() + 0.02
        assert box.y1 <= figure.get_figheight() + 0.02


def assert_text_is_legible(figure: Figure) -> None:
    assert all(
        text.get_fontsize() >= SMALLEST_POINTS
        for text in figure.findobj(Text)
        if isinstance(text, Text)
    )


def assert_labels_do_not_overlap(figure: Figure) -> None:
    for axes in figure.axes:
        for axis, low, high in ((axes.xaxis, "x0", "x1"), (axes.yaxis, "y0", "y1")):
            first, last = sorted(axis.get_view_interval())
            ticks = [t for t in axis.get_major_ticks() if first <= t.get_loc() <= last]
            labels = [
                label
                for t in ticks
                for label in (t.label1, t.label2)
                if label.get_visible() and label.get_text()
            ]
            boxes = sorted(
                (label.get_window_extent() for label in labels), key=lambda box: getattr(box, low)
            )
            for before, after in itertools.pairwise(boxes):
                assert getattr(after, low) >= getattr(before, high) - 3.0


@pytest.mark.parametrize("width_in", WIDTHS)
@pytest.mark.parametrize("kind", OF_ALL_RUNS, ids=lambda kind: kind.name)
def test_text_is_legible_and_nothing_overlaps(
    kind: FigureKind, width_in: float, quickstart_run: RunData, quickstart_analysis: AnalysisResult
) -> None:
    figure = draw_figure(kind, quickstart_run, quickstart_analysis, width_in)
    assert_all_is_inside(figure)
    assert_text_is_legible(figure)
    assert_labels_do_not_overlap(figure)


@pytest.mark.long
@pytest.mark.parametrize("kind", OF_ALL_RUNS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", ODD)
def test_odd_runs_are_drawn_too(kind: FigureKind, name: str) -> None:
    run = odd_runs()[name]
    analysis = odd_analysis(name)
    for width_in in WIDTHS:
        figure = draw_figure(kind, run, analysis, width_in)
        assert_all_is_inside(figure)
        assert_labels_do_not_overlap(figure)
        with house_style():
            ET.fromstring(to_svg(figure))
    assert kind.caption(run, analysis).endswith(".")


def test_all_are_saved_as_svg_and_png(
    quickstart_run: RunData, quickstart_analysis: AnalysisResult, tmp_path: Path
) -> None:
    drawn = save_figures(quickstart_run, quickstart_analysis, tmp_path / "figures", OF_ALL_RUNS)
    files = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert files == sorted(
        f"{kind.name}.{suffix}" for kind in OF_ALL_RUNS for suffix in ("svg", "png")
    )
    for figure in drawn:
        image = (tmp_path / "figures" / f"{figure.kind.name}.png").read_bytes()
        assert image.startswith(b"\x89PNG")
        assert int.from_bytes(image[16:20]) >= 1200
        ET.fromstring(figure.wide_svg)
        assert figure.narrow_svg != figure.wide_svg


def test_the_same_run_gives_the_same_picture(
    quickstart_run: RunData, quickstart_analysis: AnalysisResult
) -> None:
    for kind in (FIGURE_KINDS[0], FIGURE_KINDS[2]):
        assert draw_svg(kind, quickstart_run, quickstart_analysis) == draw_svg(
            kind, quickstart_run, quickstart_analysis
        )


def test_matplotlib_is_left_as_it_was(
    quickstart_run: RunData, quickstart_analysis: AnalysisResult
) -> None:
    before = dict(mpl.rcParams)
    draw_figure(FIGURE_KINDS[0], quickstart_run, quickstart_analysis)
    assert dict(mpl.rcParams) == before
    code = (
        "import sys, laggard.analysis.report.figures; sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@given(
    hnp.arrays(
        np.float64, st.tuples(st.integers(1, 700), st.integers(1, 4)), elements=st.floats(0.5, 100)
    )
)
def test_binning_keeps_means_and_bounds(rows: FloatArray) -> None:
    binned = bin_steps(rows, MOST_COLUMNS)
    assert len(binned) == min(len(rows), MOST_COLUMNS)
    assert binned.min() >= rows.min() - 1e-9
    assert binned.max() <= rows.max() + 1e-9


def test_binning_keeps_a_burst_visible() -> None:
    rows = np.ones((48_000, 1))
    rows[10_000:10_200] = 4.0
    assert bin_steps(rows, MOST_COLUMNS).max() == pytest.approx(4.0)


def test_neighbours_share_an_outline(quickstart_analysis: AnalysisResult) -> None:
    boxes = [
        (b.first_row, b.last_row, b.first_step, b.last_step, b.whole_run)
        for b in build_outlines(quickstart_analysis)
    ]
    assert boxes == [(4, 7, 0, 299, True), (8, 8, 120, 165, False)]


def test_findings_apart_have_outlines_apart(quickstart_analysis: AnalysisResult) -> None:
    edge = [f for f in quickstart_analysis.findings if f.rank is not None]
    early = edge[1].model_copy(update={"kind": "dynamic", "first_step": 10, "last_step": 60})
    late = edge[2].model_copy(update={"kind": "dynamic", "first_step": 200, "last_step": 260})
    analysis = replace(quickstart_analysis, findings=(edge[0], early, late))
    assert len(build_outlines(analysis)) == 3
    beyond = edge[0].model_copy(update={"rank": 99})
    assert select_finding_rows(beyond, analysis) == []


@given(hnp.arrays(np.float64, st.integers(0, 3_000), elements=st.floats(-1, 100)))
def test_an_ecdf_rises_to_one(values: FloatArray) -> None:
    x, y = compute_ecdf(values)
    assert len(x) == len(y) <= MOST_POINTS
    assert np.all(np.diff(x) >= 0)
    assert np.all(np.diff(y) > 0)
    assert not len(y) or y[-1] == 1.0


def test_the_step_drawn_is_the_median_one(quickstart_analysis: AnalysisResult) -> None:
    slowest = quickstart_analysis.step_s.max(axis=1)
    at = int(np.flatnonzero(quickstart_analysis.steps == find_median_step(quickstart_analysis))[0])
    assert slowest[at] == np.sort(slowest)[(len(slowest) - 1) // 2]


def test_bars_of_a_step_add_up_to_its_spans(quickstart_run: RunData) -> None:
    bars, arrivals = build_step_bars(quickstart_run.spans, 130)
    rows = quickstart_run.spans.where(quickstart_run.spans.step == 130)
    assert sum(b.length_ms.sum() for b in bars) == pytest.approx(rows.dur_ns.sum() / 1e6, rel=0.01)
    assert len(arrivals) == 2
    waits = next(b for b in bars if b.paint is WAIT)
    ends = waits.start_ms + waits.length_ms
    assert np.all(np.isin(ends.round(6), arrivals.round(6)) | (ends < arrivals.max()))


def test_who_is_waited_for_came_last_to_the_longest_wait(quickstart_run: RunData) -> None:
    spans = quickstart_run.spans
    main = spans.where(
        (spans.step == 130) & (spans.phase == Phase.COMM.code) & (spans.lane == Lane.MAIN)
    )
    waits = {}
    for group in set(main.group.tolist()) - {NO_GROUP}:
        members = main.where(main.group == group)
        starts = dict(zip(members.rank.tolist(), members.start_ns.tolist(), strict=True))
        waits[sum(max(starts.values()) - start for start in starts.values())] = max(
            starts, key=starts.__getitem__
        )
    assert find_last_arrival(spans, 130) == waits[max(waits)]
    alone = generate_run(TraceSpec(tiers=(Tier("cloud", 1),), steps=12))
    assert find_last_arrival(alone.spans, 6) == -1


def test_buckets_are_drawn_beside_the_main_lane(quickstart_run: RunData) -> None:
    spans = quickstart_run.spans
    lane = np.where(
        (spans.phase == Phase.COMM.code) & (spans.group == 1), int(Lane.BUCKETS), spans.lane
    )
    bars, _ = build_step_bars(replace(spans, lane=lane), 130)
    assert [b.paint for b in bars if b.lane == Lane.BUCKETS] == [TRANSFER]


def test_a_step_without_spans_has_no_bars(quickstart_run: RunData) -> None:
    bars, arrivals = build_step_bars(quickstart_run.spans, 10_000)
    assert bars == []
    assert len(arrivals) == 0


def test_learning_curves_are_those_of_the_run(quickstart_run: RunData) -> None:
    when, accuracy = build_accuracy_curve(quickstart_run.steps)
    assert len(when) == 5
    assert np.all(np.diff(when) > 0)
    assert np.all(np.diff(accuracy) > 0)
    _, loss = build_loss_curve(quickstart_run.steps)
    assert loss[0] == pytest.approx(2.3)
    assert np.all(np.diff(loss) < 0)


def test_the_clock_of_steps_survives_a_killed_run(quickstart_run: RunData) -> None:
    none = quickstart_run.steps.where(np.array([], dtype=np.int64))
    whole, cut = get_step_clock(quickstart_run), get_step_clock(replace(quickstart_run, steps=none))
    assert np.array_equal(whole.steps, cut.steps)
    assert np.allclose(whole.start_s, cut.start_s)
    assert np.allclose(whole.end_s, cut.end_s)
    empty = get_step_clock(
        replace(quickstart_run, steps=none, spans=quickstart_run.spans.where(none.step))
    )
    assert empty.window_s(3, 9) == (0.0, 0.0)


def test_a_window_of_steps_is_clipped_to_the_run(quickstart_run: RunData) -> None:
    clock = get_step_clock(quickstart_run)
    assert clock.window_s(0, 10**6) == (clock.start_s[0], clock.end_s[-1])
    assert clock.window_s(10**6, 10**7)[1] == clock.end_s[-1]


def test_labels_are_short_and_tell_ranks_apart(quickstart_run: RunData) -> None:
    assert sanitize_label("edge-" + "x" * 90, 20).count("…") == 1
    assert len(sanitize_label("y" * 90, 20)) == 20
    twice = (quickstart_run.hosts[0], replace(quickstart_run.hosts[0], rank=1))
    assert format_rank_labels(twice) == ["cloud.trainer.1.1 #0", "cloud.trainer.1.1 #1"]
    assert format_rank_labels([replace(twice[0], host="边缘主机")]) == ["rank 0"]


@given(st.integers(1, 500), st.integers(1, 60))
def test_shown_ranks_are_even_and_few(world: int, most: int) -> None:
    shown = select_ranks(world, most)
    assert len(shown) == min(world, most)
    assert shown[0] == 0
    assert most == 1 or shown[-1] == world - 1


def test_the_png_is_opaque_white_at_the_edges(
    quickstart_run: RunData, quickstart_analysis: AnalysisResult
) -> None:
    from matplotlib.image import imread

    from laggard.analysis.report.style.canvas import to_png

    with house_style():
        pixels = imread(
            io.BytesIO(to_png(draw_figure(FIGURE_KINDS[1], quickstart_run, quickstart_analysis)))
        )
    assert np.all(pixels[0, 0] == 1.0)


def test_labels_of_seconds_within_one_long_step_do_not_touch() -> None:
    positions = np.array([0.0, 12.0, 38.2, 38.9, 40.0])
    values = np.array([0.0, 40.0, 120.0, 130.0, 140.0])
    assert label_apart(positions, values, 1.5) == ["0", "40", "120", "", "140"]
