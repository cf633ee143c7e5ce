"""Run folders and traces to damage, and the commands that then read them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from click.testing import Result

from laggard.analysis.evaluate.synthetic.run_generator import TraceSpec, generate_run
from laggard.analysis.formats.bytedance.parquet_file import write_operations
from laggard.analysis.tables.write_run import write_run
from laggard.core.span_schema import Phase
from laggard.workloads.output.worker_output import WorkerOutputDir
from laggard.workloads.tracing.row_types import LINK_ROW, SPAN_ROW, STEP_ROW
from laggard.workloads.tracing.stream import RowStream
from tests.analysis import flight_recorder_dumps, horovod_timelines, kineto_traces
from tests.analysis.bytedance_traces import data_parallel, pipeline
from tests.analysis.parallel_traces import Job, job_documents
from tests.command_line import SMALL
from tests.run_folder.mutations import mutate_file

RUN = "runs/generated/generated-0"
READ = ("run.json", "fidelity.json", "hosts.parquet", "spans.parquet", "steps.parquet", "links.parquet")  # fmt: skip
"""Files of a run folder that commands read."""

UNCOLLECTED = "runs/small/small-0"
"""Folder of a run that was killed, whose streams commands collect."""
_PHASES_MS = {"fetch": 1, "forward": 10, "backward": 20, "comm": 5, "optimizer": 2}
_STEP_NS = 40_000_000

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


def make_uncollected_run(root: Path) -> None:
    """Write a run folder as a kill leaves it after training, with streams instead of tables."""
    folder = root / UNCOLLECTED
    workers = WorkerOutputDir(folder / "workers")
    workers.folder.mkdir(parents=True)
    (folder / "scenario").mkdir()
    for name, text in SMALL.items():
        (folder / "scenario" / name).write_text(text)
    record = generate_run(TraceSpec(steps=2)).record
    assert record is not None
    running = record.model_copy(update={"status": "running", "outcome": None, "id": "small-0"})
    (folder / "run.json").write_text(running.model_dump_json())
    (folder / "lock").touch()
    for rank in range(3):
        _write_streams(workers, rank)
    RowStream(workers.links, LINK_ROW).close()
    workers.zero.write_text(json.dumps({"zero_ns": 0}))
    workers.evaluations.write_text(
        json.dumps({"evaluation": 0, "last_arrival_ns": 9, "step": 3, "accuracy": 0.5}) + "\n"
    )
    counts = {"steps": 6, "samples": 576, "evaluations": 1, "paused_ns": 0}
    times = {"zero_ns": 0, "end_ns": 6 * _STEP_NS, "makespan_s": 0.24}
    workers.done.write_text(json.dumps({"stopped_by": "steps", "accuracy": 0.5, **counts, **times}))
    carried = [{"src": "cloud.trainer.1.1", "dst": "edge.trainer.1.1", "bytes": 9, "packets": 1}]
    (folder / "counters.json").write_text(json.dumps({"links": carried}))


def _write_streams(workers: WorkerOutputDir, rank: int) -> None:
    spans = RowStream(workers.spans(rank), SPAN_ROW)
    steps = RowStream(workers.steps(rank), STEP_ROW)
    for step in range(6):
        at_ns = step * _STEP_NS
        steps.append((step, rank, at_ns, at_ns + _STEP_NS, 0.5, 96, 96, 0, 0, 0, step, step, -1))
        for phase, length_ms in _PHASES_MS.items():
            length_ns = length_ms * 1_000_000
            code = Phase(phase).code
            spans.append((step, rank, 0, code, 0, at_ns, length_ns, -1, -1, 0, 0, 0))
            at_ns += length_ns
        if step == 3:
            spans.flush()
            steps.flush()
    if rank:  # Rank 0 was killed with rows that its streams do not have.
        spans.close()
        steps.close()


def make_folders(root: Path) -> None:
    """Write both run folders."""
    make_run(root)
    make_uncollected_run(root)


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


def damage_folder(place: Path, seed: int) -> Damage:
    """Damage one file of one of the run folders."""
    rng = random.Random(seed)
    collected = seed % 3 > 0
    folder, out = place / (RUN if collected else UNCOLLECTED), place / "out"
    files = [folder / name for name in READ] if collected else _list_streams(folder)
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
    what = mutate_file(rng.choice(files), rng)
    return Damage(what, commands, (folder, out))


def _list_streams(folder: Path) -> list[Path]:
    """Every file of the run folder; those that decide about the others are there twice."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return files + [path for path in files if path.suffix in {".json", ".jsonl", ".arrow"}]


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
