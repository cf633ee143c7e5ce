"""A run that is read in parts is the run that is held: the same timeline, findings, figures' values
and pages of time."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.analysis.evaluate.synthetic.run_generator import (
    Injection,
    Tier,
    TraceSpec,
    generate_run,
)
from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.findings.analyze_run import analyze_run
from laggard.analysis.formats.export.perfetto import write_perfetto
from laggard.analysis.report.figures.gantt import build_step_bars, find_last_arrival
from laggard.analysis.report.figures.progress import get_curves
from laggard.analysis.report.style import palette
from laggard.analysis.report.timeline.activity import (
    IntervalColumns,
    RankActivity,
    build_activity,
    build_interval_activity,
)
from laggard.analysis.report.timeline.activity_cells import (
    CellActivity,
    GrowingCells,
    build_cell_activity,
    get_activity,
)
from laggard.analysis.tables import write_run
from laggard.analysis.tables.columns import SpanColumns, StepColumns, concatenate_tables
from laggard.analysis.tables.load_run import RunData, load_run
from laggard.analysis.tables.stored_tables import StoredSpans, StoredSteps, split_at_steps
from laggard.analysis.tables.timelines.build_timeline import build_timeline
from laggard.analysis.tables.timelines.step_clock import get_step_clock
from laggard.core.errors import RunFolderError
from laggard.core.span_schema import Flag, span_schema, step_schema

ROWS = 700
"""Of a row group: not a multiple of a step's spans."""

SPEC = TraceSpec(
    tiers=(Tier("cloud", 2), Tier("fog", 2), Tier("edge", 3)),
    steps=160,
    seed=5,
    injections=(Injection("compute", 2.0, 0, rank=5), Injection("compute", 2.5, 60, 110, rank=1)),
)


def in_groups(run: RunData, folder: Path) -> Path:
    write_run.write_run(run, folder)
    for name, table in (
        ("spans", write_run.to_span_table(run.spans)),
        ("steps", write_run.to_arrow_table(run.steps, step_schema())),
    ):
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=ROWS)
    return folder


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunData, RunData]:
    folder = in_groups(generate_run(SPEC), tmp_path_factory.mktemp("stored"))
    return load_run(folder), load_run(folder, max_rows_in_memory=0)


def same_columns(one: SpanColumns | StepColumns, other: SpanColumns | StepColumns) -> None:
    for field in fields(one):
        np.testing.assert_array_equal(
            getattr(one, field.name), getattr(other, field.name), err_msg=field.name
        )


def test_small_tables_are_held_and_large_ones_are_not(pair: tuple[RunData, RunData]) -> None:
    held, stored = pair
    assert type(held.spans) is SpanColumns
    assert isinstance(stored.spans, StoredSpans)
    assert isinstance(stored.steps, StoredSteps)
    assert len(stored.spans) == len(held.spans) > 5 * ROWS
    assert stored.hosts == held.hosts


def test_parts_are_whole_steps_and_make_the_table(pair: tuple[RunData, RunData]) -> None:
    held, stored = pair
    for table, whole in ((stored.spans, held.spans), (stored.steps, held.steps)):
        parts = list(table.parts())
        assert len(parts) >= 2
        assert all(one.step[-1] < other.step[0] for one, other in pairwise(parts))
        same_columns(concatenate_tables(parts), whole)
        same_columns(table.where(np.arange(len(table))), whole)


@given(st.lists(st.lists(st.integers(0, 6), max_size=8), min_size=1, max_size=8))
def test_whole_steps_of_any_cuts(groups: list[list[int]]) -> None:
    ordered = iter(sorted(step for group in groups for step in group))
    tables = [_spans([next(ordered) for _ in group]) for group in groups]
    parts = list(split_at_steps(tables))
    numbers = [number for part in parts for number in np.unique(part.step).tolist()]
    assert len(numbers) == len(set(numbers))
    assert [step for part in parts for step in part.step.tolist()] == [
        s for t in tables for s in t.step.tolist()
    ]


def _spans(steps: list[int]) -> SpanColumns:
    step = np.array(steps, dtype=np.int64)
    return SpanColumns(**{field.name: step for field in fields(SpanColumns)})


def test_some_steps_and_moments(pair: tuple[RunData, RunData]) -> None:
    held, stored = pair
    for first, last in ((0, 0), (31, 47), (159, 400)):
        same_columns(stored.spans.of_steps(first, last), held.spans.of_steps(first, last))
    for step in (3, 77):
        some, every = stored.spans.of_steps(step, step), held.spans
        assert find_last_arrival(some, step) == find_last_arrival(every, step)
        for one, other in zip(
            build_step_bars(some, step)[0], build_step_bars(every, step)[0], strict=True
        ):
            np.testing.assert_array_equal(one.length_ms, other.length_ms)
    end_ns = float(held.spans.end_ns.max())
    window = (0.40 * end_ns, 0.45 * end_ns)
    around = stored.spans.overlapping(*window)
    assert len(held.spans.overlapping(*window)) < len(around) < len(held.spans)
    same_columns(
        around.where((around.start_ns <= window[1]) & (around.end_ns >= window[0])),
        held.spans.overlapping(*window),
    )


def test_the_timeline_and_the_findings_are_the_same(pair: tuple[RunData, RunData]) -> None:
    held, stored = pair
    one, other = build_timeline(held), build_timeline(stored)
    for field in (
        "steps",
        "warm_up",
        "samples",
        "barrier_step",
        "group",
        "member",
        "arrival",
        "finish",
        "end",
        "local",
    ):
        np.testing.assert_array_equal(getattr(one, field), getattr(other, field), err_msg=field)
    np.testing.assert_array_equal(one.work.total(), other.work.total())
    _same_analysis(analyze_run(held), analyze_run(stored))


def _same_analysis(one: AnalysisResult, other: AnalysisResult) -> None:
    assert one.findings == other.findings
    assert len(one.findings) >= 2
    for field in (
        "steps",
        "step_s",
        "compute_s",
        "wait_s",
        "transfer_s",
        "slowdown",
        "transfer_slowdown",
    ):
        np.testing.assert_array_equal(getattr(one, field), getattr(other, field), err_msg=field)
    assert (one.makespan_s, one.modeled_s, one.without_causes_s) == (
        other.makespan_s,
        other.modeled_s,
        other.without_causes_s,
    )


def test_steps_that_some_did_not_finish_are_left_out_of_both(tmp_path: Path) -> None:
    run = generate_run(SPEC)
    cut = (run.spans.rank == 2) & (run.spans.step >= 100)
    spans = replace(
        run.spans, flags=np.where(cut, run.spans.flags | Flag.TRUNCATED, run.spans.flags)
    )
    folder = in_groups(replace(run, spans=spans), tmp_path / "run")
    held, stored = (
        build_timeline(load_run(folder)),
        build_timeline(load_run(folder, max_rows_in_memory=0)),
    )
    assert held.steps.tolist() == stored.steps.tolist() == list(range(100))
    assert held.end.tolist() == stored.end.tolist()


def test_figures_have_the_same_values(pair: tuple[RunData, RunData]) -> None:
    held, stored = pair
    for one, other in zip(get_curves(held), get_curves(stored), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    for name in ("steps", "start_s", "end_s"):
        np.testing.assert_array_equal(
            getattr(get_step_clock(held), name), getattr(get_step_clock(stored), name)
        )


def test_where_time_went_is_the_same_in_cells(pair: tuple[RunData, RunData]) -> None:
    held, stored = pair
    exact, added = build_activity(held), get_activity(stored)
    assert isinstance(added, CellActivity)
    assert get_activity(stored) is added
    assert (added.end_ns, added.kinds, added.has_background) == (
        exact.end_ns,
        exact.kinds,
        exact.has_background,
    )
    assert added.ranks.tolist() == exact.ranks.tolist()
    ranks, end_ns = exact.ranks, float(exact.end_ns)
    for window in ((0.0, end_ns, 40), (0.2 * end_ns, 0.7 * end_ns, 25)):
        # Between borders of cells, what was done is taken as even.
        assert (
            np.abs(
                added.compute_shares(ranks, *window) - exact.compute_shares(ranks, *window)
            ).max()
            < 0.02
        )
    finer = (0.5 * end_ns, 0.5 * end_ns + 400 * added.width_ns, 1000)
    np.testing.assert_allclose(
        added.compute_shares(ranks, *finer), exact.compute_shares(ranks, *finer), atol=1e-9
    )


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 900), st.integers(1, 300)),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 40),
)
def test_growing_cells_hold_what_was_done(drawn: list[tuple[int, int, int]], width_ns: int) -> None:
    """Against the sorted spells, at the borders of the cells, whatever comes when."""
    apart: dict[int, int] = {}
    pieces = []
    for rank, start, length in sorted(drawn, key=lambda each: each[1]):
        begin = max(start, apart.get(rank, 0))
        apart[rank] = begin + length
        pieces.append((rank, begin, begin + length))
    cells = GrowingCells(3, 8, width_ns)
    nothing = _piece([])
    for piece in pieces:
        cells.add(
            dict.fromkeys((*_paints(), palette.BACKGROUND_TRANSFER), nothing)
            | {palette.FETCH: _piece([piece])}
        )
    end_ns = cells.width_ns * 8
    exact: RankActivity = build_interval_activity(
        {palette.FETCH: _piece(pieces)}, (palette.FETCH,), has_background=False, end_ns=end_ns
    )
    ranks = np.arange(3)
    shares = exact.compute_shares(ranks, 0.0, float(end_ns), 8)[:, :, 0]
    np.testing.assert_allclose(cells.busy_ns[0] / cells.width_ns, shares, atol=1e-9)


def _paints() -> tuple[palette.Paint, ...]:
    from laggard.analysis.report.timeline.activity import STACK_ORDER

    return STACK_ORDER


def _piece(pieces: list[tuple[int, int, int]]) -> IntervalColumns:
    columns = np.array(pieces, dtype=np.int64).reshape(-1, 3).T
    return columns[0], columns[1], columns[2]


def test_a_trace_of_its_first_steps_is_written(
    pair: tuple[RunData, RunData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("laggard.analysis.formats.export.perfetto.MOST_EVENTS", 2_000)
    notes = {
        write_perfetto(run, tmp_path / f"{number}.json.gz").note for number, run in enumerate(pair)
    }
    assert len(notes) == 1
    assert f"the run has {len(pair[0].spans)} spans" in notes.pop()


def test_row_groups_out_of_order_are_held(tmp_path: Path) -> None:
    run = generate_run(SPEC)
    folder = in_groups(run, tmp_path / "run")
    mixed = run.spans.where(np.random.default_rng(1).permutation(len(run.spans)))
    pq.write_table(write_run.to_span_table(mixed), folder / "spans.parquet", row_group_size=ROWS)
    loaded = load_run(folder, max_rows_in_memory=0)
    assert type(loaded.spans) is SpanColumns
    same_columns(loaded.spans, load_run(in_groups(run, tmp_path / "ordered")).spans)


def test_what_is_wrong_far_inside_is_told(tmp_path: Path) -> None:
    run = generate_run(SPEC)
    folder = in_groups(run, tmp_path / "run")
    table = write_run.to_span_table(run.spans)
    names = np.array(table.column("phase").to_pylist(), dtype=object)
    names[3 * ROWS] = "daydream"
    import pyarrow as pa

    phase = pa.array(names.tolist()).dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string()))
    changed = table.set_column(
        table.schema.get_field_index("phase"), span_schema().field("phase"), phase
    )
    pq.write_table(changed, folder / "spans.parquet", row_group_size=ROWS)
    with pytest.raises(RunFolderError, match="daydream"):
        build_timeline(load_run(folder, max_rows_in_memory=0))


def test_memory_is_not_taken_for_what_is_read_in_parts(pair: tuple[RunData, RunData]) -> None:
    _, stored = pair
    fresh = load_run(stored.folder, max_rows_in_memory=0)
    build_timeline(fresh)
    build_cell_activity(fresh)
    assert not {field.name for field in fields(SpanColumns)} & set(vars(fresh.spans))
