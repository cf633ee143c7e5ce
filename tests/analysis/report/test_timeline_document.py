"""The report's timeline: its budget, what is in it, and that it says what the run says."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
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
from laggard.analysis.report import write_report
from laggard.analysis.report.style.labels import select_ranks_including
from laggard.analysis.report.timeline.activity import build_activity
from laggard.analysis.report.timeline.cause_marks import build_marks, group_rows
from laggard.analysis.report.timeline.close_ups import CloseUp, find_run_end_s, plan_close_ups
from laggard.analysis.report.timeline.document import (
    CELL_BYTES,
    DIGITS,
    FINER,
    build_timeline_part,
    encode_shares,
    plan_levels,
)
from laggard.analysis.tables.load_run import RunData
from laggard.core.run_schema import Finding
from tests.analysis.conftest import analysis_by_hand

SAME_SIZE = 0.03


def finding(run: RunData, rank: int, steps: tuple[int, int], kind: str = "dynamic") -> Finding:
    return Finding.model_validate(
        {
            "rank": rank,
            "host": run.hosts[rank].host,
            "link": None,
            "family": "compute",
            "kind": kind,
            "first_step": steps[0],
            "last_step": steps[1],
            "slowdown": 3.0,
            "cost_s": 5.0,
            "confidence": 0.9,
            "masked": False,
        }
    )


def long_run(steps: int) -> tuple[RunData, AnalysisResult]:
    """A rank is slow for a tenth of the run, however long that is."""
    burst = (4 * steps // 10, 5 * steps // 10)
    tiers = (Tier("cloud", 2), Tier("edge", 4, 2.0))
    run = generate_run(
        TraceSpec(
            tiers=tiers,
            steps=steps,
            injections=(Injection("compute", 3.0, *burst, rank=4),),
            with_links=False,
        )
    )
    return run, analysis_by_hand(run, (finding(run, 4, burst),))


def document(run: RunData, analysis: AnalysisResult) -> dict[str, list[dict[str, object]]]:
    part = build_timeline_part(run, analysis)
    assert part is not None
    told: dict[str, list[dict[str, object]]] = json.loads(part.document)
    return told


@pytest.mark.long
def test_a_run_ten_times_as_long_has_a_report_of_the_same_size(tmp_path: Path) -> None:
    sizes, cells = [], []
    for steps in (500, 5_000):
        run, analysis = long_run(steps)
        sizes.append(write_report(run, analysis, tmp_path / str(steps)).stat().st_size)
        cells.append(sum(len(str(level["cells"])) for level in document(run, analysis)["levels"]))
    assert sizes[1] == pytest.approx(sizes[0], rel=SAME_SIZE)
    assert all(0.99 * CELL_BYTES < count <= CELL_BYTES for count in cells)


def test_many_ranks_keep_to_the_budget_and_slow_ones_are_shown() -> None:
    run = generate_run(
        TraceSpec(tiers=(Tier("cloud", 20), Tier("edge", 100, 2.0)), steps=30, with_links=False)
    )
    slow = [finding(run, rank, (0, 29), "deterministic") for rank in range(20, 120)]
    analysis = analysis_by_hand(run, (*slow, finding(run, 77, (10, 20))))
    told = document(run, analysis)
    assert 30 <= len(told["rows"]) <= 40
    assert run.hosts[77].host in told["rows"]
    assert sum(len(str(level["cells"])) for level in told["levels"]) <= CELL_BYTES
    part = build_timeline_part(run, analysis)
    assert part is not None
    assert part.omitted_ranks == f"{len(told['rows'])} of 120 ranks are shown."


windows = st.lists(st.tuples(st.floats(0, 0.99), st.floats(1e-6, 1)), max_size=9)


@given(st.floats(0.01, 1e5), windows, st.integers(1, 6_000))
def test_levels_share_their_columns(
    end_s: float, parts: list[tuple[float, float]], columns: int
) -> None:
    closer = [
        CloseUp("", first * end_s, min(first + length, 1.0) * end_s) for first, length in parts
    ]
    levels = plan_levels(end_s, closer, columns)
    assert sum(level.cells for level in levels) == columns
    whole = levels[0]
    assert (whole.first_s, whole.last_s) == (0.0, end_s)
    wanted = {(window.first_s, window.last_s) for window in closer}
    for level in levels[1:]:
        assert (level.first_s, level.last_s) in wanted
        width = (level.last_s - level.first_s) / level.cells
        assert width <= 1.01 * FINER * end_s / whole.cells


@given(
    st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=1, max_size=20),
    st.floats(0, 1),
)
def test_shares_survive_the_encoding(rows: list[list[float]], background: float) -> None:
    shares = np.array(rows)
    shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1.0)
    table = np.concatenate([shares, np.full((len(rows), 1), background)], axis=1)[:, None, :]
    text = encode_shares(table, kinds=3)
    values = np.array([DIGITS.index(c) for c in text]).reshape(len(rows), 4)
    assert np.abs(values[:, :3] / 63 - shares).max() <= 1.001 / 63
    assert values[:, :3].sum(axis=1).max() <= 63
    assert np.abs(values[:, 3] / 63 - background).max() <= 0.501 / 63


def test_cells_say_what_the_spans_say(
    quickstart_run: RunData, quickstart_analysis: AnalysisResult
) -> None:
    told = document(quickstart_run, quickstart_analysis)
    activity = build_activity(quickstart_run)
    for level in told["levels"]:
        values = np.array([DIGITS.index(c) for c in str(level["cells"])])
        read = (
            values.reshape(-1, quickstart_run.world_size, activity.series_count).mean(axis=0) / 63
        )
        first, last = (float(str(level[end])) * 1e9 for end in ("from", "to"))
        exact = activity.compute_shares(np.arange(quickstart_run.world_size), first, last, 1)[0]
        assert read == pytest.approx(exact, abs=0.01)
    assert told["rows"] == [host.host for host in quickstart_run.hosts]


def test_findings_are_marked(quickstart_run: RunData, quickstart_analysis: AnalysisResult) -> None:
    edge, link = build_marks(quickstart_run, quickstart_analysis)
    assert (edge.subject, edge.ranks, edge.whole_run) == ("The four edge hosts", (4, 5, 6, 7), True)
    assert (link.ranks, link.whole_run) == (tuple(range(8)), False)
    rows = quickstart_run.steps.where(
        (quickstart_run.steps.step >= 120) & (quickstart_run.steps.step <= 165)
    )
    assert link.first_s == pytest.approx(rows.start_ns.min() / 1e9)
    assert link.last_s == pytest.approx(rows.end_ns.max() / 1e9)
    lasting = tuple(
        f.model_copy(update={"kind": "deterministic"}) for f in quickstart_analysis.findings
    )
    marks = build_marks(quickstart_run, replace(quickstart_analysis, findings=lasting))
    assert [mark.subject for mark in marks] == ["The four edge hosts"]


@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30), min_size=1))
def test_rows_of_a_mark_are_its_ranks(ranks: set[int], shown: set[int]) -> None:
    rows = np.array(sorted(shown))
    found = group_rows(tuple(ranks), rows)
    covered = [row for first, last in found for row in range(first, last + 1)]
    assert {int(rows[row]) for row in covered} == ranks & shown
    assert all(after[0] > before[1] + 1 for before, after in itertools.pairwise(found))


@given(st.integers(1, 300), st.lists(st.integers(0, 299), max_size=60), st.integers(2, 50))
def test_wanted_ranks_are_shown(world: int, wanted: list[int], most: int) -> None:
    wanted = [rank for rank in wanted if rank < world]
    shown = select_ranks_including(world, most, wanted)
    assert len(shown) == len(set(shown.tolist())) <= most
    assert set(list(dict.fromkeys(wanted))[: most // 2]) <= set(shown.tolist())


def test_closer_windows_are_inside_the_run(
    quickstart_run: RunData, quickstart_analysis: AnalysisResult
) -> None:
    closer = plan_close_ups(quickstart_run, quickstart_analysis)
    assert [window.label.split(",")[0].split(" (")[0] for window in closer[:2]] == [
        "The links between edge and cloud",
        "The links between edge and cloud: beginning",
    ]
    end_s = find_run_end_s(quickstart_run)
    assert all(0.0 <= window.first_s < window.last_s <= end_s for window in closer)
    assert len(closer) == 4


def test_a_run_without_spans_has_no_timeline(
    quickstart_run: RunData, quickstart_analysis: AnalysisResult
) -> None:
    empty = replace(quickstart_run, spans=quickstart_run.spans.where(np.zeros(0, dtype=np.int64)))
    assert build_timeline_part(empty, quickstart_analysis) is None
