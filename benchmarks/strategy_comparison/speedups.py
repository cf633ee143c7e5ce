"""Strategies against a baseline: how many times as fast each was, with how much certainty, and how
much of what is possible that is.

Runs are paired: a strategy's and the baseline's on the same column with the same seed. What is
averaged are the logarithms of the ratios of their times, so that twice as fast and half as fast
cancel out; the interval is Student's for their mean.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RunTiming:
    """One run.

    Attributes:
        column: the continuum.
        strategy: what trained.
        seed: of the run.
        makespan_s: seconds to the accuracy, or until it was cut.
        steps: in them.
        is_cut: whether it was cut before it had the accuracy; then it would have taken longer.
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
    """A strategy on a column.

    Attributes:
        ratio: how many times as fast as the baseline it was (geometric mean); at most so, where
            runs were cut.
        low: end of the 95 % interval; None where there are fewer than two pairs.
        high: the other.
        pairs: runs that have one of the baseline beside them.
        cut: how many of them were cut.
        of_bound: `ratio` as a part of the largest that is possible; None where that is not known.
    """

    ratio: float
    low: float | None
    high: float | None
    pairs: int
    cut: int
    of_bound: float | None


@dataclass(frozen=True)
class Comparison:
    """The table.

    Attributes:
        baseline: what all are compared with.
        columns: in their order.
        strategies: the baseline left out; the best on the whole first.
        cells: by strategy and column, where there is anything.
        bounds: by column, how many times as fast as the baseline a strategy can be that takes as
            many samples.
        baseline_s: by column, seconds that the baseline took (geometric mean).
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
    """Make the table.

    Args:
        timings: all runs; of several of one strategy, column and seed the last counts.
        baseline: the strategy that others are compared with.
        mean_shares: by column, the share of a core that a worker has, on average over workers and
            time: what none of them can compute faster than, and so the bound (see
            `benchmarks/strategy_comparison/speed_bound.py`).
        order: columns in the order to be shown; others follow by name.
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
    """Student's 95 % interval for a mean, of e to the power of it; None for fewer than two
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
    """The table as Markdown: the ratio, its interval, how much of the bound that is, and what was
    cut.
    """
    return "\n".join(_iterate_markdown_lines(comparison))


def format_ratio(cell: Cell) -> str:
    """The ratio of a cell; `<` where runs were cut."""
    return f"{'< ' if cell.cut else ''}{cell.ratio:.2f}"


def _iterate_markdown_lines(comparison: Comparison) -> Iterator[str]:
    yield "| " + " | ".join(["", *comparison.columns]) + " |"
    yield "|" + "---|" * (len(comparison.columns) + 1)
    seconds = [
        _format_optional(comparison.baseline_s.get(column), "{:.1f} s")
        for column in comparison.columns
    ]
    yield "| " + " | ".join([f"{comparison.baseline}, 1", *seconds]) + " |"
    for strategy in comparison.strategies:
        texts = [
            _format_cell(comparison.cells.get((strategy, column))) for column in comparison.columns
        ]
        yield "| " + " | ".join([strategy, *texts]) + " |"
    bounds = [
        _format_optional(comparison.bounds.get(column), "{:.2f}") for column in comparison.columns
    ]
    yield "| " + " | ".join(["bound", *bounds]) + " |"


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
    """The baseline's seconds a step over the fewest; 0 where they are not known."""
    if not (base.step_cpu_s and base.steps):
        return 0.0
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
