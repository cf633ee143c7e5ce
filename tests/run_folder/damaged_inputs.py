"""Run folders and traces to damage, and the commands that then read them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from click.testing import Result

from laggard.analysis.evaluate.synthetic.run_generator import TraceSpec, generate_run
from laggard.analysis.formats.bytedance.parquet_file import write_operations
from laggard.analysis.tables.write_run import write_run
from tests.analysis import flight_recorder_dumps, horovod_timelines, kineto_traces
from tests.analysis.bytedance_traces import data_parallel, pipeline
from tests.analysis.parallel_traces import Job, job_documents
from tests.run_folder.mutations import mutate_file

RUN = "runs/generated/generated-0"
READ = ("run.json", "fidelity.json", "hosts.parquet", "spans.parquet", "steps.parquet", "links.parquet")  # fmt: skip
"""Files of a run folder that commands read."""

TRACES: Mapping[str, Callable[[Path], object]] = {
    "job.parquet": lambda path: write_operations(data_parallel([3.0, 1.0, 1.0, 1.0]), path),
    "pipeline.parquet": lambda path: write_operations(pipeline(3, 4, lambda s: 1.0 + s), path),
    "profiled": lambda path: kineto_traces.write(
        path, [kineto_traces.host_document(rank, late=100 * rank) for rank in (0, 1)]
    ),
    "grouped": lambda path: kineto_traces.write(path, _describe_groups(Job(tensor=2, steps=3))),
    "zipped": lambda path: kineto_traces.write(
        path, job_documents(Job(world=2, steps=3)), zipped=True
    ),
    "timeline.json": lambda path: horovod_timelines.write(
        path, horovod_timelines.training([0, 3000, 10])
    ),
    "dumps": lambda path: flight_recorder_dumps.write(
        path, [flight_recorder_dumps.dump(rank, [0, 10], timed=True) for rank in (0, 1)]
    ),
    "untimed": lambda path: flight_recorder_dumps.write(
        path, [flight_recorder_dumps.dump(rank, [0, 10], timed=False) for rank in (0, 1)]
    ),
}
"""Traces of ByteDance's format, of torch.profiler, of Horovod and of torch's flight recorder."""


def _describe_groups(job: Job) -> list[kineto_traces.Document]:
    """Documents that also list their process groups."""
    groups = [
        {"pg_name": "0", "pg_desc": "default_pg", "ranks": list(range(job.world)), "pg_size": 4},
        {"pg_name": "tp", "pg_desc": "tensor", "ranks": [0, 1], "pg_size": 2},
        {"pg_name": "dp", "pg_desc": "data", "ranks": [0, 2], "pg_size": 2},
    ]
    documents = job_documents(job)
    for each in documents:
        each["distributedInfo"]["pg_config"] = groups
    return documents


def make_run(root: Path) -> None:
    """Write the run folder."""
    write_run(generate_run(TraceSpec(steps=12)), root / RUN)


def make_traces(root: Path) -> None:
    """Write all traces."""
    for name, make in TRACES.items():
        make(root / name)


@dataclass(frozen=True)
class Damage:
    """What was done to a run folder or a trace, and which commands then read it.

    Attributes:
        what: what was done.
        commands: arguments of the commands.
        written: files and folders in which the commands may write.
    """

    what: str
    commands: Sequence[tuple[str | Path, ...]]
    written: tuple[Path, ...]


def damage_run(place: Path, seed: int) -> Damage:
    """Damage one file of the run folder."""
    rng = random.Random(seed)
    folder, out = place / RUN, place / "out"
    formats = rng.choice(("csv", "perfetto", "bytedance"))
    last: list[tuple[str | Path, ...]] = [
        ("report", folder),
        ("compare", folder),
        ("analyze", folder, "--out", out / "b"),
    ]
    commands = (
        ("runs", "--runs", place / "runs"),
        ("export", folder, "--format", formats, "--out", out / "a"),
        rng.choice(last),
    )
    what = mutate_file(folder / rng.choice(READ), rng)
    return Damage(what, commands, (folder, out))


def damage_trace(place: Path, seed: int) -> Damage:
    """Damage one file of one of the traces."""
    rng = random.Random(seed)
    name = tuple(TRACES)[seed % len(TRACES)]
    trace, out = place / name, place / "out"
    files = sorted(trace.iterdir()) if trace.is_dir() else [trace]
    reference = ("--reference", "bytedance") if rng.random() < 0.5 else ()
    what = f"{name}: {mutate_file(rng.choice(files), rng)}"
    return Damage(what, [("analyze", trace, "--out", out, *reference)], (out,))


def list_files(root: Path, besides: Sequence[Path]) -> dict[str, bytes]:
    """Every file below a folder, with its content, besides those in some folders."""
    return {
        str(path): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and not any(path.is_relative_to(each) for each in besides)
    }


def list_broken_promises(result: Result) -> list[str]:
    """What does not hold after a command that read damaged input.

    It ended with one message instead of a traceback, and its output is harmless to a terminal.
    """
    broken = []
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        broken.append(f"traceback: {result.exception!r:.300}")
    elif result.exit_code not in (0, 1, 2):
        broken.append(f"exit status {result.exit_code}")
    elif result.exit_code and result.stderr.count("error: ") != 1:
        broken.append(f"no single message: {result.stderr[-300:]!r}")
    if not all(c.isprintable() or c == "\n" for c in result.output):
        broken.append(f"unprintable output: {result.output[-300:]!r}")
    return broken
