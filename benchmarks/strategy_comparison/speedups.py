"""Speed of strategies relative to a baseline, with confidence and with the part of the bound.

Runs are paired: a strategy's run and the baseline's run on the same column with the same seed. The
logarithms of the ratios of their times are averaged, so that twice as fast and half as fast cancel
out. The interval is Student's for their mean.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

LIMIT_LABEL = "limit at equal samples"
"""Name of the largest possible ratio in tables and figures. A strategy that needs fewer samples than
the baseline can exceed it."""


@dataclass(frozen=True)
class RunTiming:
    """Timing of one run.

    Attributes:
        column: name of the continuum.
        strategy: name of the strategy.
        seed: seed of the run.
        makespan_s: seconds until the accuracy was reached, or until the run was cut.
        steps: number of steps in that time.
        is_cut: whether the run was cut before it reached the accuracy; it would have taken longer.
        step_cpu_s: CPU seconds of a worker's step at full speed.
    """

    column: str
    strategy: str
    seed: int
    makespan_s: float
    steps: int
    is_cut: bool = False
    step_cpu_s: float = 0.0


@dataclass(frozen=True)
class Cell:
    """Result of a strategy on a column.

    Attributes:
        ratio: speed relative to the baseline (geometric mean); an upper bound if runs were cut.
        low: lower end of the 95 % interval; None for fewer than two pairs.
        high: upper end of the 95 % interval; None for fewer than two pairs.
        pairs: number of runs that are paired with one of the baseline.
        cut: number of these runs that were cut.
        of_bound: `ratio` as a part of the largest possible ratio; None if that is unknown.
    """

    ratio: float
    low: float | None
    high: float | None
    pairs: int
    cut: int
    of_bound: float | None


@dataclass(frozen=True)
class Comparison:
    """Table of all strategies and columns.

    Attributes:
        baseline: strategy that the others are compared with.
        columns: names of the columns, in order.
        strategies: names of the strategies except the baseline; the best on average is first.
        cells: results by strategy and column, where there are any.
        bounds: by column, largest possible ratio of a strategy that takes as many samples as the
            baseline.
        baseline_s: by column, seconds of the baseline (geometric mean).
    """

    baseline: str
    columns: tuple[str, ...]
    strategies: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell]
    bounds: Mapping[str, float]
    baseline_s: Mapping[str, float]


def compare_strategies(
    timings: Sequence[RunTiming],
    baseline: str,
    mean_shares: Mapping[str, float],
    order: Sequence[str] = (),
) -> Comparison:
    """Compare all strategies with the baseline.

    Args:
        timings: all runs; of several runs with equal strategy, column and seed the last counts.
        baseline: strategy that the others are compared with.
        mean_shares: by column, mean share of a core over workers and time. No strategy can compute
            faster than these shares allow, which gives the bound (see
            `benchmarks/strategy_comparison/speed_bound.py`).
        order: columns in the order to show; the others follow by name.
    """
    known = {(timing.column, timing.strategy, timing.seed): timing for timing in timings}
    columns = _sort_columns({timing.column for timing in timings}, order)
    bases = {
        key: timing
        for key, timing in known.items()
        if timing.strategy == baseline and not timing.is_cut
    }
    bounds = {}
    baseline_s = {}
    for column in columns:
        of_column = [timing for timing in bases.values() if timing.column == column]
        if of_column:
            baseline_s[column] = statistics.geometric_mean(
                timing.makespan_s for timing in of_column
            )
        possible = [
            _compute_bound(timing, mean_shares[column])
            for timing in of_column
            if column in mean_shares
        ]
        if any(possible):
            bounds[column] = statistics.geometric_mean(value for value in possible if value)
    cells = {}
    for strategy in {timing.strategy for timing in timings} - {baseline}:
        for column in columns:
            pairs = [
                (bases[column, baseline, timing.seed], timing)
                for timing in known.values()
                if (timing.column, timing.strategy) == (column, strategy)
                and (column, baseline, timing.seed) in bases
            ]
            if pairs:
                cells[strategy, column] = _build_cell(pairs, bounds.get(column))
    return Comparison(baseline, columns, _rank_strategies(cells), cells, bounds, baseline_s)


def compute_ratio_interval(logarithms: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of a geometric mean from logarithms of ratios.

    It is Student's interval for the mean of the logarithms, exponentiated; None for fewer than two
    values.
    """
    from scipy import stats

    count = len(logarithms)
    if count < 2:
        return None
    middle = statistics.fmean(logarithms)
    reach = float(stats.t.ppf(0.975, count - 1)) * statistics.stdev(logarithms) / math.sqrt(count)
    return math.exp(middle - reach), math.exp(middle + reach)


def format_markdown(comparison: Comparison) -> str:
    """Format the table as Markdown.

    A cell has the ratio, its interval, the part of the bound, and the number of cut runs.
    """
    return "\n".join(_iterate_markdown_lines(comparison))


def format_ratio(cell: Cell) -> str:
    """Format the ratio of a cell, with `<` if runs were cut."""
    return f"{'< ' if cell.cut else ''}{cell.ratio:.2f}"


def _iterate_markdown_lines(comparison: Comparison) -> Iterator[str]:
    yield "| " + " | ".join(["strategy", *comparison.columns]) + " |"
    yield "|" + "---|" * (len(comparison.columns) + 1)
    seconds = [
        _format_optional(comparison.baseline_s.get(column), "{:.1f} s")
        for column in comparison.columns
    ]
    yield "| " + " | ".join([f"{comparison.baseline}, time", *seconds]) + " |"
    for strategy in comparison.strategies:
        texts = [
            _format_cell(comparison.cells.get((strategy, column))) for column in comparison.columns
        ]
        yield "| " + " | ".join([strategy, *texts]) + " |"
    bounds = [
        _format_optional(comparison.bounds.get(column), "{:.2f}") for column in comparison.columns
    ]
    yield "| " + " | ".join([LIMIT_LABEL, *bounds]) + " |"


def _format_cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    parts = [format_ratio(cell)]
    if cell.low is not None and cell.high is not None and not cell.cut:
        parts.append(f"({cell.low:.2f} to {cell.high:.2f})")
    if cell.of_bound is not None and not cell.cut:
        parts.append(f"{100 * cell.of_bound:.0f} %")
    if cell.cut:
        parts.append(f"({cell.cut} of {cell.pairs} cut)")
    return " ".join(parts)


def _format_optional(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _build_cell(pairs: Sequence[tuple[RunTiming, RunTiming]], bound: float | None) -> Cell:
    logarithms = [math.log(base.makespan_s / timing.makespan_s) for base, timing in pairs]
    ratio = math.exp(statistics.fmean(logarithms))
    low, high = compute_ratio_interval(logarithms) or (None, None)
    cut = sum(timing.is_cut for _, timing in pairs)
    return Cell(ratio, low, high, len(pairs), cut, None if bound is None else ratio / bound)


def _compute_bound(base: RunTiming, mean_share: float) -> float:
    """Return the baseline's seconds per step over the fewest possible; 0 if unknown."""
    if not (base.step_cpu_s and base.steps):
        return 0.0
    # The fewest seconds per step are the CPU seconds divided by the mean share.
    return base.makespan_s / base.steps * mean_share / base.step_cpu_s


def _rank_strategies(cells: Mapping[tuple[str, str], Cell]) -> tuple[str, ...]:
    logarithms: dict[str, list[float]] = {}
    for (strategy, _), cell in cells.items():
        logarithms.setdefault(strategy, []).append(math.log(cell.ratio))
    return tuple(
        sorted(logarithms, key=lambda strategy: (-statistics.fmean(logarithms[strategy]), strategy))
    )


def _sort_columns(columns: set[str], order: Sequence[str]) -> tuple[str, ...]:
    return (*(column for column in order if column in columns), *sorted(columns - set(order)))
