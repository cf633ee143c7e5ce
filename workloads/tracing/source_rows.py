"""Content of the streams and files that one machine's processes wrote, checked before its use."""

from __future__ import annotations

import json
import stat
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, TypeAdapter

from laggard.core.clocks.clock_fit import ClockFit
from laggard.core.errors import RunFolderError, escape_unprintable
from laggard.core.files.file_kinds import describe_kind
from laggard.core.node_values import LARGEST, MessageText, Number, Real
from laggard.core.run_schema import ClientAccuracies, StreamTask
from laggard.core.span_schema import Phase
from laggard.workloads.clients.round_record import (
    TimedRound,
    read_client_accuracies,
    read_rounds,
)
from laggard.workloads.output.worker_output import WorkerOutputDir, of_all_lives, read_lines
from laggard.workloads.streams.task_accuracies import read_tasks
from laggard.workloads.tracing.row_types import LINK_ROW, SPAN_ROW, STEP_ROW, Rows
from laggard.workloads.tracing.stream import read_rows
from laggard.workloads.tracing.traffic import Traffic, read_traffic

SUSPECT_NS = 1_000_000
"""Clock error above which a span is marked. Findings about waits tolerate an error of 1 ms."""

_MOST_TEXT_BYTES = 256 << 20


@dataclass(frozen=True)
class Source:
    """Streams of one machine's processes.

    Attributes:
        output_dir: folder with the streams.
        ranks: ranks whose spans and steps are in the folder.
        clock: map from the machine's clock to the clock of rank 0's machine.
    """

    output_dir: WorkerOutputDir
    ranks: tuple[int, ...]
    clock: ClockFit


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class Evaluation(_Line):
    """Evaluation of the model after a step; `rank` is None if all ranks took the step together."""

    step: Number
    rank: Number | None = None
    accuracy: Real | None


class DecisionLine(_Line):
    """Decision of the strategy, at a time of the machine's clock."""

    step: Number
    time_ns: Number
    description: MessageText


class _Zero(_Line):
    zero_ns: Number


@dataclass(frozen=True)
class SourceRows:
    """Content of a source; times of rows are in the reference clock.

    Attributes:
        source: place of the streams.
        spans: spans, with flags on those with uncertain times.
        steps: steps.
        links: samples of links.
        zero_ns: time of the first step in the reference clock; None if the file is not there.
        evaluations: evaluations of the model.
        decisions: decisions of the strategy, with times in the reference clock.
        stream_tasks: tasks of a stream with the accuracies on them.
        rounds: rounds of a federated training, with times in the reference clock.
        client_accuracies: accuracies for the clients of a federated training.
        device_classes: model of the GPU of each rank that computed on one.
        traffic: traffic of the machine's processes.
    """

    source: Source
    spans: Rows
    steps: Rows
    links: Rows
    zero_ns: int | None
    evaluations: tuple[Evaluation, ...]
    decisions: tuple[DecisionLine, ...]
    stream_tasks: tuple[StreamTask, ...]
    rounds: tuple[TimedRound, ...]
    client_accuracies: tuple[ClientAccuracies, ...]
    device_classes: dict[int, str]
    traffic: tuple[Traffic, ...]


_EVALUATIONS = TypeAdapter(tuple[Evaluation, ...])
_DECISIONS = TypeAdapter(tuple[DecisionLine, ...])


def load_source(
    source: Source, hosts: int, world_size: int, processes: Sequence[int] = ()
) -> SourceRows:
    """Read everything that a machine's processes wrote.

    Args:
        source: place of the streams.
        hosts: number of hosts that the link sampler knows.
        world_size: number of ranks.
        processes: numbers of the processes whose traffic is read.

    Raises:
        RunFolderError: a stream is damaged, or has rows of other ranks or impossible values.
    """
    try:
        return _load_source(source, hosts, world_size, processes)
    # The libraries that read the files raise errors of many kinds for damaged content.
    except (
        ValueError, TypeError, LookupError, ArithmeticError, OSError, RecursionError, MemoryError,
        pa.ArrowException,
    ) as error:  # fmt: skip
        reason = escape_unprintable(f"{type(error).__name__}: {error}"[:300])
        raise RunFolderError(
            f"{source.output_dir.folder}: the files of a node are damaged: {reason}"
        ) from error


def _load_source(
    source: Source, hosts: int, world_size: int, processes: Sequence[int]
) -> SourceRows:
    output_dir, clock = source.output_dir, source.clock
    _require_regular_files(output_dir.folder)
    for path in (
        output_dir.evaluations,
        output_dir.decisions,
        output_dir.zero,
        output_dir.stream,
        output_dir.task_accuracies,
        output_dir.rounds,
        output_dir.client_accuracies,
    ):
        _require_small(path)
    spans = _read_streams([output_dir.spans(rank) for rank in source.ranks], SPAN_ROW)
    steps = _read_streams([output_dir.steps(rank) for rank in source.ranks], STEP_ROW)
    links = read_rows(output_dir.links, LINK_ROW)
    for rows in (spans, steps):
        _require_within("rank", rows["rank"], source.ranks)
    _require_within("phase", spans["phase"], range(len(Phase)))
    for name in ("src", "dst"):
        _require_within(name, links[name], range(hosts))
    for rows in (spans, steps, links):
        _require_times(rows)
    zero_ns = read_zero_ns(output_dir)
    evaluations = _EVALUATIONS.validate_python(read_lines(output_dir.evaluations))
    evaluated = [each.step for each in evaluations]
    decisions = _DECISIONS.validate_python(read_lines(output_dir.decisions))
    return SourceRows(
        source,
        _correct_spans(spans, clock),
        _correct_times(steps, clock, ("start_ns", "end_ns")),
        _correct_times(links, clock, ("time_ns",)),
        None if zero_ns is None else _correct_time(zero_ns, clock),
        evaluations,
        tuple(_correct_decision(each, clock) for each in decisions),
        read_tasks(output_dir, evaluated),
        tuple(_correct_round(each, clock) for each in read_rounds(output_dir, world_size)),
        read_client_accuracies(output_dir, evaluated, world_size),
        _read_device_classes(source),
        read_traffic(output_dir, processes),
    )


def _require_regular_files(folder: Path) -> None:
    """Refuse a folder with anything that workers do not make: reading a pipe would never end."""
    for path in folder.iterdir():
        mode = path.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise ValueError(f"{path.name} is {describe_kind(mode)}")


def _require_small(path: Path) -> None:
    if path.exists() and path.stat().st_size > _MOST_TEXT_BYTES:
        raise ValueError(f"{path.name} has more than {_MOST_TEXT_BYTES >> 20} MiB")


def _require_within(name: str, values: Rows, allowed: Sequence[int]) -> None:
    foreign = values[~np.isin(values, list(allowed))]
    if len(foreign):
        raise ValueError(f"column {name} has the value {foreign[0]}, which is not possible")


def _require_times(rows: Rows) -> None:
    """Refuse times whose sums and differences would not fit into 64 bits."""
    for name in rows.dtype.names or ():
        column = rows[name]
        # The smallest integer has no absolute value, so both ends are compared.
        if name.endswith("_ns") and len(column):
            largest = max(int(column.max()), -int(column.min()))
            if largest > LARGEST // 2:
                raise ValueError(f"column {name} has a time of {largest} ns")


def _correct_spans(rows: Rows, clock: ClockFit) -> Rows:
    """Convert the spans' times to the reference clock and mark those with uncertain times."""
    start_ns = rows["start_ns"].copy()
    end_ns = clock.to_reference(start_ns + rows["dur_ns"])
    rows["start_ns"] = clock.to_reference(start_ns)
    rows["dur_ns"] = end_ns - rows["start_ns"]
    rows["flags"] |= clock.span_flags(start_ns, SUSPECT_NS)
    return rows


def _correct_times(rows: Rows, clock: ClockFit, names: Sequence[str]) -> Rows:
    for name in names:
        rows[name] = clock.to_reference(rows[name].copy())
    return rows


def _correct_decision(line: DecisionLine, clock: ClockFit) -> DecisionLine:
    return line.model_copy(update={"time_ns": _correct_time(line.time_ns, clock)})


def _correct_round(timed: TimedRound, clock: ClockFit) -> TimedRound:
    return replace(timed, time_ns=_correct_time(timed.time_ns, clock))


def _correct_time(time_ns: int, clock: ClockFit) -> int:
    return int(clock.to_reference(np.array([time_ns], dtype=np.int64))[0])


def _read_streams(streams: Sequence[Path], row: np.dtype[np.void]) -> Rows:
    """Return all rows of these streams, including those of later processes of a rank."""
    found = [read_rows(each, row) for stream in streams for each in of_all_lives(stream)]
    return np.concatenate([np.empty(0, dtype=row), *found])


def read_zero_ns(output_dir: WorkerOutputDir) -> int | None:
    """Return the time of the first step, CLOCK_MONOTONIC ns; None if it never began."""
    if not output_dir.zero.exists():
        return None
    return _Zero.model_validate(json.loads(output_dir.zero.read_bytes())).zero_ns


def _read_device_classes(source: Source) -> dict[int, str]:
    files = {rank: source.output_dir.device_class(rank) for rank in source.ranks}
    return {
        rank: escape_unprintable(file.read_text()[:500])
        for rank, file in files.items()
        if file.exists()
    }
