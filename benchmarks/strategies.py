"""Time to the same accuracy of every strategy on every kind of heterogeneity, against DDP.

    python benchmarks/strategies.py [--columns NAME ...] [--strategies NAME ...] [--seeds 1 2 3]
        [--out strategies.csv] [--limit SECONDS]
    python benchmarks/strategies.py --table strategies.csv [--columns NAME ...] [--seeds 1 2 3]
        [--against adaptive] [--slipped] [--figure strategies.png]
    python benchmarks/strategies.py --each pilot.csv [--columns NAME ...] [--seeds 1 2] [--slipped]
    python benchmarks/strategies.py --bytes strategies.csv [--columns NAME ...] [--seeds 1 2 3]
        [--slipped]
    python benchmarks/strategies.py --bounds strategies.csv

Columns and strategies are listed in `experiments/strategies`; a strategy that is not listed there
runs with its defaults. Each row is appended when its run ends, so a second start with the same
file continues the comparison.

- `--limit` cuts every run after so many seconds and does not run DDP unless it is named.
- `--table` runs nothing and prints the table as Markdown.
- `--each` prints every seed separately (`<`: cut, `~`: unfaithful emulation).
- `--bytes` prints the bytes sent until the accuracy was reached, as a fraction of DDP's.
- `--slipped` also counts runs with an unfaithful emulation if there is no faithful run.
- `--bounds` prints the largest possible speed (`benchmarks/strategy_comparison/speed_bound.py`).
"""

from __future__ import annotations

import argparse
import fcntl
import json
import statistics
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from strategy_comparison import trials
from strategy_comparison.trials import Contender, Result, Trial

from laggard.core.errors import EXIT_INTERRUPTED, LaggardError
from laggard.scenario.load import Scenario

if TYPE_CHECKING:
    from strategy_comparison.speedups import Comparison

HERE = Path(__file__).resolve().parents[1] / "experiments/strategies"
BASELINE = "allreduce"


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--columns", nargs="+", help="columns of columns.yaml; default: all")
    parser.add_argument(
        "--strategies", nargs="+", help="names of contenders.yaml or of strategies; default: all"
    )
    parser.add_argument(
        "--seeds", nargs="+", type=int, help="default: 1 2 3; for a table, all seeds in it"
    )
    parser.add_argument("--out", type=Path, default=Path("strategies.csv"))
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder for run folders")
    parser.add_argument(
        "--tries", type=int, default=3, help="attempts for a run that fails or is unfaithful"
    )
    parser.add_argument(
        "--limit",
        type=float,
        metavar="SECONDS",
        help=f"cut every run after this time, and do not run {BASELINE}",
    )
    parser.add_argument(
        "--within", type=float, metavar="SECONDS", help="begin no run after this time"
    )
    parser.add_argument(
        "--lock",
        type=Path,
        help="lock file to hold during each run, so that measurements take turns",
    )
    parser.add_argument(
        "--table", type=Path, metavar="CSV", help="run nothing; print the table of these results"
    )
    parser.add_argument(
        "--each", type=Path, metavar="CSV", help="run nothing; print every seed separately"
    )
    parser.add_argument(
        "--against", default=BASELINE, metavar="NAME", help="strategy that the table compares with"
    )
    parser.add_argument(
        "--figure", type=Path, metavar="PNG", help="also draw the table to this file"
    )
    parser.add_argument(
        "--slipped", action="store_true", help="use unfaithful runs where there is no faithful one"
    )
    parser.add_argument(
        "--bytes", type=Path, metavar="CSV", help="run nothing; print bytes sent, relative to DDP"
    )
    parser.add_argument(
        "--bounds",
        type=Path,
        metavar="CSV",
        help="run nothing; print how fast any strategy could be",
    )
    return parser.parse_args()


def chosen(asked: argparse.Namespace) -> tuple[list[trials.Column], list[Contender]]:
    """Return the named columns and strategies, or all."""
    columns = {column.name: column for column in trials.load_columns(HERE / "columns.yaml")}
    contenders = {
        contender.name: contender for contender in trials.load_contenders(HERE / "contenders.yaml")
    }
    unknown = sorted(set(asked.columns or ()) - set(columns))
    if unknown:
        sys.exit(f"unknown column {unknown[0]} — use {', '.join(columns)}")
    names = asked.strategies or list(contenders)
    return (
        [columns[name] for name in asked.columns or columns],
        [contenders.get(name, Contender(name=name)) for name in names],
    )


@contextmanager
def turn(lock: Path | None) -> Iterator[None]:
    """Hold the lock, if there is one."""
    if lock is None:
        yield
        return
    with lock.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def told(result: Result) -> str:
    """Format one run as a line."""
    parts = [result.column, result.strategy, f"seed {result.seed}", result.status]
    if result.makespan_s:
        parts += [
            (
                f"{result.makespan_s:.1f} s to {result.accuracy:.3f} ({result.stopped_by}),"
                f" {result.steps} steps"
            )
        ]
    return " · ".join([*parts, *filter(None, [result.error])])


def compare(asked: argparse.Namespace, everything: Sequence[Trial]) -> None:
    """Run what is due, in order.

    A block whose baseline has not reached the accuracy is skipped.
    """
    until_s = time.monotonic() + (asked.within or float("inf"))
    for trial in everything:
        while trials.is_due(trial, results := trials.read_results(asked.out), asked.tries):
            limit = asked.limit or trials.get_time_limit_s(trial, results, BASELINE)
            if limit is None:
                print(
                    f"{' '.join(map(str, trial.key))}: skipped, because {BASELINE} has not reached"
                    " the accuracy there",
                    flush=True,
                )
                break
            if time.monotonic() > until_s:
                return
            # One run at a time: others would change the times that are measured.
            with turn(asked.lock):
                result = trials.run_trial(trial, limit, asked.runs)
            trials.append_result(asked.out, result)
            print(told(result), flush=True)


def usable(table: Path, asked: argparse.Namespace) -> list[Result]:
    """Return the last faithful run of each requested trial.

    With `--slipped`, the last unfaithful run replaces a missing faithful one.
    """
    results = [
        result
        for result in trials.read_results(table)
        if result.makespan_s
        and (asked.seeds is None or result.seed in asked.seeds)
        and (asked.columns is None or result.column in asked.columns)
    ]
    faithful = {result.key: result for result in results if result.status == "done"}
    others = (
        {result.key: result for result in results if result.status == "unfaithful"}
        if asked.slipped
        else {}
    )
    # Keys of the right operand win: faithful runs replace unfaithful ones.
    return list((others | faithful).values())


def print_bytes(results: Sequence[Result]) -> None:
    """Print the bytes that strategies sent until they reached the accuracy.

    They are fractions of the baseline's bytes, as geometric means over seeds.
    """
    sent = {
        result.key: result.bytes_sent
        for result in results
        if not result.is_cut and result.bytes_sent
    }
    columns = [column.name for column in trials.load_columns(HERE / "columns.yaml")]
    rows = []
    for strategy in sorted({strategy for _, strategy, _ in sent} - {BASELINE}):
        cells = []
        for column in columns:
            of_column = [
                (size, sent.get((column, BASELINE, seed)))
                for (*which, seed), size in sent.items()
                if which == [column, strategy]
            ]
            parts = [size / base for size, base in of_column if base]
            cells.append(f"{statistics.geometric_mean(parts):.2f}" if parts else "")
        rows.append([strategy, *cells])
    print_table(columns, rows)


def report(results: Sequence[Result], figure: Path | None, against: str) -> None:
    """Print the table of the results and draw it.

    The bound is only known relative to the default baseline.
    """
    from strategy_comparison.heatmap import draw_comparison
    from strategy_comparison.speedups import format_markdown

    from laggard.analysis.report.style.canvas import WIDE_IN, house_style, to_png

    made = compare_results(results, against, mean_shares() if against == BASELINE else {})
    print(format_markdown(made))
    if figure is not None:
        with house_style():
            figure.write_bytes(to_png(draw_comparison(made, WIDE_IN)))


def compare_results(
    results: Sequence[Result], against: str, shares: Mapping[str, float]
) -> Comparison:
    """Return the comparison of these results."""
    from strategy_comparison.speedups import RunTiming, compare_strategies

    order = [column.name for column in trials.load_columns(HERE / "columns.yaml")]
    timings = [
        RunTiming(r.column, r.strategy, r.seed, r.makespan_s, r.steps, r.is_cut, r.step_cpu_s)
        for r in results
    ]
    return compare_strategies(timings, against, shares, order)


def print_each(results: Sequence[Result]) -> None:
    """Print the speedup of each strategy for each seed, and the part of the bound it reaches."""
    from strategy_comparison.speedups import LIMIT_LABEL

    shares, slipped = (
        mean_shares(),
        {result.key for result in results if result.status == "unfaithful"},
    )
    whole = compare_results(results, BASELINE, shares)
    seeds = sorted({result.seed for result in results})
    of_seed = {
        seed: compare_results([r for r in results if r.seed == seed], BASELINE, shares)
        for seed in seeds
    }
    rows = [
        [
            f"{BASELINE}, time",
            *of_each(whole.columns, [made.baseline_s for made in of_seed.values()], "{:.1f} s"),
        ]
    ]
    for strategy in whole.strategies:
        cells = [told_each(of_seed, (column, strategy), slipped) for column in whole.columns]
        rows.append(
            [
                strategy,
                *(
                    cell + part_of_bound(whole, strategy, column)
                    for cell, column in zip(cells, whole.columns, strict=True)
                ),
            ]
        )
    rows.append(
        [LIMIT_LABEL, *of_each(whole.columns, [made.bounds for made in of_seed.values()], "{:.2f}")]
    )
    print_table(whole.columns, rows)


def of_each(
    columns: Sequence[str], of_seeds: Sequence[Mapping[str, float]], form: str
) -> list[str]:
    """Format the values of all seeds, by column."""
    return [
        " · ".join(form.format(values[column]) if column in values else "–" for values in of_seeds)
        for column in columns
    ]


def told_each(
    of_seed: Mapping[int, Comparison],
    which: tuple[str, str],
    slipped: Collection[tuple[str, str, int]],
) -> str:
    """Format the ratios of one column and strategy for all seeds."""
    from strategy_comparison.speedups import format_ratio

    cells = {seed: made.cells.get((which[1], which[0])) for seed, made in of_seed.items()}
    return " · ".join(
        "–" if cell is None else format_ratio(cell) + ("~" if (*which, seed) in slipped else "")
        for seed, cell in cells.items()
    )


def part_of_bound(made: Comparison, strategy: str, column: str) -> str:
    """Format the part of the bound that a strategy reaches; empty if a run was cut."""
    cell = made.cells.get((strategy, column))
    return (
        ""
        if cell is None or cell.of_bound is None or cell.cut
        else f" ({100 * cell.of_bound:.0f} %)"
    )


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table as Markdown."""
    print("| " + " | ".join(["strategy", *columns]) + " |")
    print("|" + "---|" * (len(columns) + 1))
    for row in rows:
        print("| " + " | ".join(row) + " |")


def mean_shares() -> dict[str, float]:
    """Return the mean share of a core of a worker, by column."""
    from strategy_comparison.speed_bound import compute_mean, host_levels

    shares = {name: host_levels(scenario) for name, scenario in scenarios()}
    return {name: sum(map(compute_mean, levels)) / len(levels) for name, levels in shares.items()}


def scenarios() -> Iterator[tuple[str, Scenario]]:
    """Yield the columns with their scenarios."""
    from laggard.scenario.load import load_scenario

    for column in trials.load_columns(HERE / "columns.yaml"):
        settings = [f"{key}={json.dumps(value)}" for key, value in column.settings.items()]
        yield column.name, load_scenario(column.scenario, settings)


def bounds(table: Path) -> None:
    """Print the bound on every column, and predicted and measured durations of DDP's step."""
    from strategy_comparison.speed_bound import compute_bound
    from strategy_comparison.speedups import LIMIT_LABEL

    from laggard.workloads.models import build_model

    results = [
        r
        for r in trials.read_results(table)
        if r.strategy == BASELINE and r.status == "done" and r.steps
    ]
    print(
        "| column | CPU time of a step, ms | shortest step, s | DDP's step by the formula, s | DDP's"
        f" step measured, s | {LIMIT_LABEL} | by measured step |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, scenario in scenarios():
        known = [result for result in results if result.column == name]
        if not known:
            continue
        cpu_s = statistics.median(result.step_cpu_s for result in known)
        # The digits data set: gray images of 8 x 8 pixels in ten classes, 4 bytes per parameter.
        model = build_model(scenario.workload.model, (1, 8, 8), 10, 1)
        size_bytes = sum(4 * parameter.numel() for parameter in model.parameters())
        found, batch = compute_bound(scenario, cpu_s, size_bytes), scenario.workload.batch_size
        best_s, ddp_s = batch / found.best_samples_per_s, batch / found.allreduce_samples_per_s
        measured_s = statistics.median(result.makespan_s / result.steps for result in known)
        cells = [f"{1e3 * cpu_s:.1f}", *(f"{v:.3f}" for v in (best_s, ddp_s, measured_s))]
        print(
            "| "
            + " | ".join([name, *cells, f"{found.ratio:.2f}", f"{measured_s / best_s:.2f}"])
            + " |"
        )


def main() -> None:
    """Run trials, or print results."""
    asked = arguments()
    if asked.table is not None:
        report(usable(asked.table, asked), asked.figure, asked.against)
        return
    if asked.each is not None:
        print_each(usable(asked.each, asked))
        return
    if asked.bytes is not None:
        print_bytes(usable(asked.bytes, asked))
        return
    if asked.bounds is not None:
        bounds(asked.bounds)
        return
    columns, contenders = chosen(asked)
    everything = trials.list_trials(columns, contenders, asked.seeds or [1, 2, 3], BASELINE)
    compare(
        asked,
        [trial for trial in everything if asked.limit is None or trial.contender in contenders],
    )


if __name__ == "__main__":
    try:
        main()
    except LaggardError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
