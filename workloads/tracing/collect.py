"""Conversion of a training's streams to the tables of the run folder.

Times in the tables are virtual and count from the first step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from laggard.core.clocks.clock_fit import ClockFit
from laggard.core.files.output_files import replace_file, write_json
from laggard.core.hosts import Host
from laggard.core.run_schema import FEDERATED_FILE, STREAM_FILE, FederatedTraining
from laggard.core.span_schema import (
    ROW_GROUP_ROWS,
    Flag,
    Phase,
    host_schema,
    link_schema,
    span_schema,
    step_schema,
)
from laggard.core.virtual_time import Dilation
from laggard.workloads.output.worker_output import WorkerOutputDir
from laggard.workloads.tracing.row_types import Rows
from laggard.workloads.tracing.source_rows import Evaluation, Source, SourceRows, load_source

Integers = npt.NDArray[np.int64]
CPU = "cpu"
"""Device class of a rank that has no GPU."""


@dataclass(frozen=True)
class Collected:
    """Numbers of rows in the tables of a training."""

    spans: int
    steps: int
    links: int


def collect(
    spool_folder: Path,
    run_folder: Path,
    hosts_by_rank: Sequence[Host],
    dilation: Dilation,
    cpu_shares: Mapping[str, float] | None = None,
    sampled: Sequence[str] = (),
) -> Collected:
    """Write the tables of a training whose processes all ran on this machine, with one clock.

    Arguments and result are those of `collect_from`.
    """
    source = Source(
        WorkerOutputDir(spool_folder), tuple(range(len(hosts_by_rank))), ClockFit.identity()
    )
    names = sampled or _sampled_hosts(hosts_by_rank)
    rows = load_source(source, len(names), len(hosts_by_rank))
    return collect_from([rows], run_folder, hosts_by_rank, dilation, cpu_shares, sampled)


def collect_from(
    sources: Sequence[SourceRows],
    run_folder: Path,
    hosts_by_rank: Sequence[Host],
    dilation: Dilation,
    cpu_shares: Mapping[str, float] | None = None,
    sampled: Sequence[str] = (),
) -> Collected:
    """Write the tables of a training, even of one that was killed.

    The tables are `spans.parquet`, `steps.parquet`, `links.parquet` and `hosts.parquet`. Decisions
    of the strategy go to `decisions.json`, accuracies on the tasks of a stream to `stream.json`,
    and the rounds of a federated training to `federated.json`.

    Args:
        sources: content of the streams by machine; rank 0's machine comes first.
        run_folder: folder that gets the tables.
        hosts_by_rank: host of every rank.
        dilation: ratio of real to virtual time.
        cpu_shares: virtual share of one core, by host name; 1 for a missing host.
        sampled: host names as the link sampler numbered them; if empty, the ranks' hosts in rank
            order.

    Returns:
        Numbers of rows.
    """
    zero_ns = sources[0].zero_ns
    spans = np.concatenate([source.spans for source in sources])
    steps = np.concatenate([source.steps for source in sources])
    links = np.concatenate([source.links for source in sources])
    if zero_ns is None:
        # Without a first step there is no time zero, so nothing can be placed in time.
        spans, steps, links = spans[:0], steps[:0], links[:0]
    clock = _Clock(zero_ns or 0, dilation.factor)
    links = links[links["time_ns"] >= clock.zero_ns]
    _write_table(run_folder / "spans.parquet", _span_table(spans, steps, clock))
    _write_table(
        run_folder / "steps.parquet",
        _step_table(steps, clock, sources[0].evaluations),
    )
    _write_table(
        run_folder / "links.parquet",
        _link_table(links, clock, sampled or _sampled_hosts(hosts_by_rank)),
    )
    _write_decisions(run_folder / "decisions.json", sources, clock)
    if sources[0].stream_tasks:
        tasks = [each.model_dump(mode="json") for each in sources[0].stream_tasks]
        write_json(run_folder / STREAM_FILE, tasks)
    _write_rounds(run_folder / FEDERATED_FILE, sources, clock)
    clocks = dict.fromkeys(range(len(hosts_by_rank)), ClockFit.identity())
    clocks |= {rank: each.source.clock for each in sources for rank in each.source.ranks}
    device_classes = {rank: name for each in sources for rank, name in each.device_classes.items()}
    _write_table(
        run_folder / "hosts.parquet",
        _host_table(hosts_by_rank, cpu_shares or {}, clocks, spans, device_classes),
    )
    return Collected(len(spans), len(steps), len(links))


def _write_decisions(path: Path, sources: Sequence[SourceRows], clock: _Clock) -> None:
    """Write the decisions of the strategy during training; write no file if there were none.

    The rank that records decisions for all, or the server, has written them.
    """
    lines = [line for source in sources for line in source.decisions]
    times_ns = np.array([line.time_ns for line in lines], dtype=np.int64)
    decisions = [
        {"step": line.step, "at_s": round(at_s, 3), "description": line.description}
        for line, at_s in zip(lines, (clock.since_zero(times_ns) / 1e9).tolist(), strict=True)
    ]
    if decisions:
        write_json(path, decisions)


def _write_rounds(path: Path, sources: Sequence[SourceRows], clock: _Clock) -> None:
    """Write the rounds of a federated training; write no file if there were none."""
    timed = [each for source in sources for each in source.rounds]
    ends_s = clock.since_zero(np.array([each.time_ns for each in timed], dtype=np.int64)) / 1e9
    rounds = tuple(
        each.result.model_copy(update={"ended_s": round(end_s, 6)})
        for each, end_s in zip(timed, ends_s.tolist(), strict=True)
    )
    if rounds:
        training = FederatedTraining(rounds=rounds, evaluations=sources[0].client_accuracies)
        write_json(path, training.model_dump(mode="json"))


@dataclass(frozen=True)
class _Clock:
    """Conversion from real times to virtual times since the first step."""

    zero_ns: int
    factor: float

    def since_zero(self, times_ns: Integers) -> Integers:
        """Convert times to virtual ns since the first step.

        Equal times stay equal, so spans without a gap between them stay without a gap.
        """
        return np.floor((times_ns - self.zero_ns) / self.factor).astype(np.int64)

    def shorter(self, durations: Integers) -> Integers:
        """Convert real durations to virtual ones."""
        return np.rint(durations / self.factor).astype(np.int64)


def _span_table(rows: Rows, steps: Rows, clock: _Clock) -> pa.Table:
    rows = rows[np.lexsort((rows["lane"], rows["start_ns"], rows["rank"], rows["step"]))]
    start = clock.since_zero(rows["start_ns"])
    duration = clock.since_zero(rows["start_ns"] + rows["dur_ns"]) - start
    # A span whose step has no row was cut off by a kill or by the end of training.
    finished = np.isin(_step_key(rows), _step_key(steps))
    flags = rows["flags"] | np.where(finished, 0, Flag.TRUNCATED).astype(np.uint8)
    phases = pa.array([phase.value for phase in Phase])
    special = {
        "phase": pa.DictionaryArray.from_arrays(pa.array(rows["phase"]), phases),
        "start_ns": start,
        "dur_ns": duration,
        "flags": flags,
    }
    return _build_table(span_schema(), rows, special)


def _step_key(rows: Rows) -> Integers:
    """Combine step and rank into one sortable integer."""
    key: Integers = (rows["step"].astype(np.int64) << 32) | rows["rank"]
    return key


def _step_table(rows: Rows, clock: _Clock, evaluations: Sequence[Evaluation]) -> pa.Table:
    rows = rows[np.lexsort((rows["rank"], rows["step"]))]
    # Ranks in lockstep are evaluated after a common step, so the line has no rank. Otherwise the
    # line names the rank and step of the push before the evaluation.
    accuracy_of = {(line.step, line.rank): line.accuracy for line in evaluations}
    places = zip(rows["step"].tolist(), rows["rank"].tolist(), strict=True)
    accuracies = [
        accuracy_of.get((step, None), accuracy_of.get((step, rank))) for step, rank in places
    ]
    special = {
        "start_ns": clock.since_zero(rows["start_ns"]),
        "end_ns": clock.since_zero(rows["end_ns"]),
        "accuracy": pa.array(accuracies, pa.float64()),
    }
    return _build_table(step_schema(), rows, special)


def _sampled_hosts(hosts_by_rank: Sequence[Host]) -> list[str]:
    """Return the host names as the sampler numbered them: each once, in rank order."""
    return list(dict.fromkeys(host.name for host in hosts_by_rank))


def _link_table(rows: Rows, clock: _Clock, names: Sequence[str]) -> pa.Table:
    rows = rows[np.argsort(rows["time_ns"], kind="stable")]
    hosts = pa.array(names, pa.string())
    durations = (
        "rtt_us",
        "min_rtt_us",
        "last_send_ms",
        "busy_us",
        "rwnd_limited_us",
        "sndbuf_limited_us",
    )
    special = {
        "time_ns": clock.since_zero(rows["time_ns"]),
        "src": hosts.take(pa.array(rows["src"])),
        "dst": hosts.take(pa.array(rows["dst"])),
        "app_limited": rows["app_limited"].astype(bool),
        "delivery_rate_mbps": rows["delivery_rate_bytes_per_s"] * (8e-6 * clock.factor),
        **{name: clock.shorter(rows[name]) for name in durations},
    }
    return _build_table(link_schema(), rows, special)


def _host_table(
    hosts_by_rank: Sequence[Host],
    cpu_shares: Mapping[str, float],
    clocks: Mapping[int, ClockFit],
    spans: Rows,
    device_classes: Mapping[int, str],
) -> pa.Table:
    """Build the table of hosts, with each rank's clock offset at the start of training.

    The clock error is the largest bound over the training.
    """
    ends = (
        np.array([spans["start_ns"].min(), spans["start_ns"].max()])
        if len(spans)
        else np.zeros(2, dtype=np.int64)
    )
    rows = [
        {
            "rank": rank,
            "host": host.name,
            "address": host.address,
            "tier": host.layer,
            "device_class": device_classes.get(rank, CPU),
            "cpu_share": cpu_shares.get(host.name, 1.0),
            "clock_offset_ns": _offset_ns(clocks[rank], ends),
            "clock_error_ns": round(
                float(clocks[rank].error_ns(clocks[rank].to_local(ends)).max())
            ),
        }
        for rank, host in enumerate(hosts_by_rank)
    ]
    return pa.Table.from_pylist(rows, schema=host_schema())


def _offset_ns(clock: ClockFit, times_ns: Integers) -> int:
    return int(times_ns[0] - clock.to_local(times_ns)[0])


def _build_table(schema: pa.Schema, rows: Rows, special: Mapping[str, object]) -> pa.Table:
    fields = rows.dtype.names or ()
    columns = [
        special[name] if name in special else np.ascontiguousarray(rows[name])
        for name in schema.names
    ]
    assert all(name in special or name in fields for name in schema.names)
    arrays = [
        column if isinstance(column, pa.Array) else pa.array(column).cast(schema.field(name).type)
        for name, column in zip(schema.names, columns, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _write_table(path: Path, table: pa.Table) -> None:
    texts = [
        f.name for f in table.schema if pa.types.is_string(f.type) or pa.types.is_dictionary(f.type)
    ]
    # Sorted integers such as times have small differences, which this encoding stores in few bits.
    deltas = {
        f.name: "DELTA_BINARY_PACKED"
        for f in table.schema
        if pa.types.is_int32(f.type) or pa.types.is_int64(f.type)
    }
    with replace_file(path) as file:
        pq.write_table(
            table,
            file,
            compression="zstd",
            row_group_size=ROW_GROUP_ROWS,
            use_dictionary=texts,
            column_encoding=deltas,
        )
