"""Strategies against a baseline: ratios, intervals, what was cut, the table and its figure."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from strategy_comparison.heatmap import draw_comparison
from strategy_comparison.speedups import (
    RunTiming,
    compare_strategies,
    compute_ratio_interval,
    format_markdown,
)

from laggard.analysis.report.style.canvas import NARROW_IN, WIDE_IN, house_style, to_svg

BASE = [RunTiming("net", "ddp", seed, 40.0, 50, step_cpu_s=0.02) for seed in (1, 2, 3)]
HALF = [RunTiming("net", "twice", seed, 20.0, 50) for seed in (1, 2, 3)]


def test_twice_as_fast_is_twice_as_fast() -> None:
    made = compare_strategies([*BASE, *HALF], "ddp", {"net": 0.1})
    cell = made.cells["twice", "net"]
    assert (cell.ratio, cell.low, cell.high) == pytest.approx((2.0, 2.0, 2.0))
    assert (cell.pairs, cell.cut) == (3, 0)
    # A step of 0.8 s, of which computing on a tenth of a core needs 0.2 s.
    assert made.bounds == {"net": pytest.approx(4.0)}
    assert cell.of_bound == pytest.approx(0.5)
    assert made.baseline_s == {"net": pytest.approx(40.0)}


def test_pairs_are_of_one_seed() -> None:
    base = [RunTiming("net", "ddp", seed, float(10 * seed), 50) for seed in (1, 2, 3)]
    other = [RunTiming("net", "x", seed, float(5 * seed), 50) for seed in (2, 3, 4)]
    cell = compare_strategies([*base, *other], "ddp", {}).cells["x", "net"]
    assert cell.ratio == pytest.approx(2.0)
    assert cell.pairs == 2
    assert cell.of_bound is None


def test_the_last_of_several_counts() -> None:
    made = compare_strategies([*BASE, RunTiming("net", "twice", 1, 1.0, 5), *HALF], "ddp", {})
    assert made.cells["twice", "net"].ratio == pytest.approx(2.0)


def test_what_was_cut_is_at_most_so_fast() -> None:
    cut = [RunTiming("net", "slow", seed, 120.0, 500, is_cut=True) for seed in (1, 2)]
    made = compare_strategies(
        [*BASE, *cut, RunTiming("net", "slow", 3, 80.0, 90)], "ddp", {"net": 0.1}
    )
    cell = made.cells["slow", "net"]
    assert (cell.cut, cell.pairs) == (2, 3)
    assert cell.ratio == pytest.approx((1 / 3 * 1 / 3 * 1 / 2) ** (1 / 3))
    assert "| slow | < 0.38 (2 of 3 cut) |" in format_markdown(made)


def test_a_baseline_that_was_cut_is_none() -> None:
    base = [RunTiming("net", "ddp", 1, 300.0, 50, is_cut=True)]
    made = compare_strategies([*base, *HALF], "ddp", {"net": 0.1})
    assert made.cells == {}
    assert made.bounds == {}


@pytest.mark.parametrize(
    ("count", "t"), [(2, 12.706), (3, 4.303), (6, 2.571), (11, 2.228), (31, 2.042), (121, 1.980)]
)
def test_the_interval_reaches_as_far_as_printed_tables_of_t_say(count: int, t: float) -> None:
    values = np.linspace(-1, 1, count)
    found = compute_ratio_interval(values.tolist())
    assert found is not None
    assert math.log(found[1]) == pytest.approx(t * values.std(ddof=1) / math.sqrt(count), rel=1e-3)


@given(
    st.lists(st.floats(-3, 3), min_size=2, max_size=12).filter(lambda values: np.std(values) > 1e-3)
)
def test_the_interval_is_students(values: list[float]) -> None:
    expected = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    found = compute_ratio_interval(values)
    assert found is not None
    assert [math.log(end) for end in found] == pytest.approx(list(expected), rel=1e-9, abs=1e-9)


def test_one_pair_has_no_interval() -> None:
    assert compute_ratio_interval([0.3]) is None
    made = compare_strategies([BASE[0], HALF[0]], "ddp", {})
    assert "| twice | 2.00 |" in format_markdown(made)


def test_the_table() -> None:
    worse = [RunTiming("cpu", "worse", seed, 50.0 + seed, 50) for seed in (1, 2)]
    bases = [RunTiming("cpu", "ddp", seed, 40.0, 50, step_cpu_s=0.02) for seed in (1, 2)]
    made = compare_strategies(
        [*BASE, *HALF, *bases, *worse], "ddp", {"net": 0.1}, order=["net", "cpu", "other"]
    )
    assert made.columns == ("net", "cpu")
    assert made.strategies == ("twice", "worse")
    assert format_markdown(made).splitlines() == [
        "| strategy | net | cpu |",
        "|---|---|---|",
        "| ddp, time | 40.0 s | 40.0 s |",
        "| twice | 2.00 (2.00 to 2.00) 50 % |  |",
        "| worse |  | 0.78 (0.69 to 0.88) |",
        "| limit at equal samples | 4.00 |  |",
    ]


@pytest.mark.parametrize("width_in", [WIDE_IN, NARROW_IN])
def test_the_figure_says_every_ratio(width_in: float) -> None:
    cut = [RunTiming("net", "slow", seed, 120.0, 500, is_cut=True) for seed in (1, 2)]
    made = compare_strategies(
        [*BASE, *HALF, *cut, RunTiming("far_net", "ddp", 1, 40.0, 50)], "ddp", {"net": 0.1}
    )
    with house_style():
        figure = draw_comparison(made, width_in)
        svg = to_svg(figure)
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == ["", "2.00", "", "< 0.33", "", "4.0"]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "twice",
        "slow",
        "limit at equal samples",
    ]
    assert svg.startswith("<?xml")
    shown = axes.images[0].get_array()
    assert shown is not None
    assert shown[0, 1] > 0 > shown[1, 1]


def test_a_figure_of_nothing_but_baselines() -> None:
    with house_style():
        assert (
            len(draw_comparison(compare_strategies(BASE, "ddp", {"net": 0.1}), WIDE_IN).axes) == 1
        )
