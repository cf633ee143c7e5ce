"""Cost of analyzing a large run: seconds, processor seconds, peak memory, report size.

    python benchmarks/scale.py [SPANS ...] [--ranks 64] [--keep FOLDER]

The trace generator makes the runs, in parts of a million spans. One host is slow throughout,
others are slow temporarily. `laggard analyze` analyzes each run in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pyarrow.parquet as pq

from laggard.analysis.evaluate.synthetic.run_generator import (
    Injection,
    Tier,
    TraceSpec,
    generate_run,
)
from laggard.analysis.tables import write_run
from laggard.analysis.tables.columns import Columns
from laggard.analysis.tables.load_run import RunData
from laggard.core.span_schema import ROW_GROUP_ROWS, span_schema, step_schema

_C = TypeVar("_C", bound=Columns)

SPANS = (10**6, 10**7, 10**8)
SPANS_OF_A_STEP = 8
"""Spans per step of one rank."""

PART_STEPS = 2048
SLOW_ALL_ALONG, SLOW_FOR_A_WHILE = 7, 11


def part_of(steps: int, ranks: int, seed: int) -> RunData:
    """Generate some steps of a run.

    One rank is slow throughout. In every fourth part another rank is slow for a hundred steps.
    """
    tiers = (
        Tier("cloud", ranks // 4),
        Tier("fog", ranks // 4),
        Tier("edge", ranks - 2 * (ranks // 4)),
    )
    injections = [Injection("compute", 1.5, 0, rank=SLOW_ALL_ALONG % ranks)]
    if seed % 4 == 1 and steps > 400:
        injections.append(Injection("compute", 2.5, 200, 300, rank=SLOW_FOR_A_WHILE % ranks))
    # Only the first part of a run begins with warm-up steps.
    warm_up = TraceSpec().warm_up_steps if seed == 0 else 0
    spec = TraceSpec(
        tiers=tiers,
        steps=steps,
        seed=seed,
        warm_up_steps=warm_up,
        injections=tuple(injections),
        with_links=False,
    )
    return generate_run(spec)


def parts(spans: int, ranks: int) -> Iterator[RunData]:
    """Yield the parts of a run of so many spans, in order."""
    steps, first, start_ns = spans // (ranks * SPANS_OF_A_STEP), 0, 0
    for seed in range(-(-steps // PART_STEPS)):
        part = part_of(min(PART_STEPS, steps - first), ranks, seed)
        yield replace(
            part,
            spans=later(part.spans, first, start_ns, ("start_ns",)),
            steps=later(part.steps, first, start_ns, ("start_ns", "end_ns")),
        )
        first += PART_STEPS
        start_ns += int(part.spans.end_ns.max())


def later(columns: _C, first: int, start_ns: int, times: tuple[str, ...]) -> _C:
    """Move a part by so many steps and nanoseconds."""
    moved = {name: getattr(columns, name) + start_ns for name in times}
    return replace(columns, step=columns.step + first, **moved)


def write(spans: int, ranks: int, folder: Path) -> int:
    """Write a run folder and return its number of spans."""
    folder.mkdir(parents=True)
    written, last = 0, None
    with (
        pq.ParquetWriter(folder / "spans.parquet", span_schema(), compression="zstd") as span_file,
        pq.ParquetWriter(folder / "steps.parquet", step_schema(), compression="zstd") as step_file,
    ):
        for part in parts(spans, ranks):
            span_file.write_table(
                write_run.to_span_table(part.spans), row_group_size=ROW_GROUP_ROWS
            )
            step_file.write_table(write_run.to_arrow_table(part.steps, step_schema()))
            written, last = written + len(part.spans), part
    assert last is not None
    record = last.record
    assert record is not None
    assert record.outcome is not None
    makespan_s = float(last.spans.end_ns.max()) * 1e-9
    outcome = record.outcome.model_copy(update={"makespan_s": makespan_s})
    kept = record.model_copy(update={"outcome": outcome, "id": f"generated-{spans}"})
    write_run.write_hosts(last.hosts, folder)
    (folder / "run.json").write_text(kept.model_dump_json(indent=2), encoding="utf-8")
    return written


def analysed(folder: Path, out: Path) -> tuple[float, float, float]:
    """Return seconds, processor seconds and peak memory in GiB of `laggard analyze`."""
    # Spawned by hand, since only `wait4` tells the peak memory of a single child.
    words = [sys.executable, "-m", "laggard.cli.main", "analyze", str(folder)]
    began = time.monotonic()
    with (out / "said.txt").open("wb") as said:
        child = os.posix_spawn(
            words[0],
            words,
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, said.fileno(), n) for n in (1, 2)],
        )
        _, status, used = os.wait4(child, 0)
    if status:
        sys.exit((out / "said.txt").read_text())
    return time.monotonic() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 2**20


def main() -> None:
    """Print one line per size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("spans", nargs="*", type=int, default=SPANS)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument(
        "--keep",
        type=Path,
        help="folder to keep and reuse the runs in; without it they are removed",
    )
    asked = parser.parse_args()
    print(
        "| spans | spans.parquet, MB | seconds | processor seconds | peak memory, GiB | report,"
        " MB |"
    )
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        for spans in asked.spans:
            folder = (asked.keep or Path(scratch)) / f"{spans}"
            if not folder.exists():
                write(spans, asked.ranks, folder)
            took_s, cpu_s, memory_gib = analysed(folder, folder)
            stored, report = (
                (folder / name).stat().st_size / 1e6 for name in ("spans.parquet", "report.html")
            )
            cells = (
                f"{spans:.0e}",
                f"{stored:.0f}",
                f"{took_s:.0f}",
                f"{cpu_s:.0f}",
                f"{memory_gib:.2f}",
                f"{report:.2f}",
            )
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
