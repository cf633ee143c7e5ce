"""Export of a run as a Chrome JSON trace for ui.perfetto.dev and chrome://tracing.

The trace has one process per host and one thread per rank and lane. Steps enclose their phases,
and a collective encloses the wait for the last rank. Perfetto reads this format as a legacy one:
events of one track must be nested, and a file may have at most a million events.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np

from laggard.analysis.formats.export.registry import ExportResult
from laggard.analysis.tables.columns import BoolArray, IntArray, SpanColumns
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.collective_waits import find_latest_arrivals
from laggard.core.files.output_files import replace_file
from laggard.core.span_schema import Lane, Phase

# Perfetto's limit is a million; the rest leaves room for metadata.
MOST_EVENTS = 990_000
# Thread numbers of rank r begin at r * TRACKS_PER_RANK + 1, one range per lane.
TRACKS_PER_RANK = 4096
_PER_LANE = TRACKS_PER_RANK // len(Lane)
_PHASES = tuple(Phase)
# Writing events one by one takes several times as long.
_EVENTS_AT_ONCE = 4096

PerfettoEvent = Mapping[str, object]


@dataclass(frozen=True)
class PerfettoExport:
    """Result of an export.

    Attributes:
        path: file that was written.
        events: number of events in it.
        note: sentence that names the steps that were left out, or "".
    """

    path: Path
    events: int
    note: str


def write_perfetto(run: RunData, path: Path) -> PerfettoExport:
    """Write the trace, gzipped.

    Args:
        run: a loaded run.
        path: file to write; `trace.perfetto.json.gz` by convention.

    Returns:
        The number of events, and a note that names the steps that were left out, if any.
    """
    spans, note = select_first_steps(run.spans.first(MOST_EVENTS), MOST_EVENTS)
    if note:
        note += f", and the run has {len(run.spans)} spans"
    # Spans before the first-step barrier have negative times, so the trace's zero moves there.
    zero = min(int(spans.start_ns.min()) if len(spans) else 0, 0)
    header = {
        "displayTimeUnit": "ms",
        "otherData": {
            "run": run.record.id if run.record is not None else run.folder.name,
            "clock": (
                "virtual time; 0 is the first-step barrier" + (f" plus {-zero} ns" if zero else "")
            ),
            "note": note or "complete",
        },
    }
    with replace_file(path) as file:
        events = _write_events(file, header, _format_events(run, spans, zero))
    return PerfettoExport(path, events, note)


def export_perfetto(run: RunData, path: Path) -> ExportResult:
    """Write the trace, with the note on steps that were left out (see `write_perfetto`).

    Examples:
        >>> from laggard.analysis.tables.load_run import load_run
        >>> run = load_run(Path("runs/quickstart/latest"))
        >>> export_perfetto(run, Path("trace.json.gz")).paths[0].name
        'trace.json.gz'
    """
    written = write_perfetto(run, path)
    return ExportResult((written.path,), (written.note,) if written.note else ())


def _write_events(file: BinaryIO, header: Mapping[str, object], events: Iterator[str]) -> int:
    count = 0
    with gzip.open(file, "wt", compresslevel=5, encoding="utf-8") as out:
        out.write(json.dumps(header)[:-1] + ', "traceEvents": [\n')
        while batch := list(islice(events, _EVENTS_AT_ONCE)):
            out.write((",\n" if count else "") + ",\n".join(batch))
            count += len(batch)
        out.write("\n]}\n")
    return count


def select_first_steps(spans: SpanColumns, most: int) -> tuple[SpanColumns, str]:
    """Return the spans of the first steps that together make at most `most` events.

    A span makes at most two events, and a step one per rank. The note is empty if all steps fit.
    """
    if not len(spans):
        return spans, ""
    order = np.argsort(spans.step, kind="stable")
    steps, first = np.unique(spans.step[order], return_index=True)
    size = np.diff(np.append(first, len(spans)))
    communication = spans.phase == Phase.COMM.code
    extra = np.bincount(np.searchsorted(steps, spans.step[communication]), minlength=len(steps))
    world = len(np.unique(spans.rank))
    total = np.cumsum(size + extra + world + 1)
    fits = int(np.searchsorted(total, most, side="right"))
    if fits == len(steps):
        return spans, ""
    kept = max(fits, 1)
    note = (
        f"steps after {int(steps[kept - 1])} were left out: Perfetto opens at most a million events"
    )
    return spans.where(spans.step <= steps[kept - 1]), note


def pack_tracks(start_ns: IntArray, end_ns: IntArray) -> IntArray:
    """Return a track number for each span so that spans of one track never overlap, [N].

    The spans must be sorted by start.
    """
    ends: list[int] = []
    track = np.zeros(len(start_ns), dtype=np.int64)
    if (start_ns[1:] >= end_ns[:-1]).all():
        return track
    for index, (start, end) in enumerate(zip(start_ns.tolist(), end_ns.tolist(), strict=True)):
        free = next((number for number, busy in enumerate(ends) if busy <= start), len(ends))
        if free == len(ends):
            ends.append(end)
        else:
            ends[free] = end
        track[index] = free
    return track


def _format_events(run: RunData, spans: SpanColumns, zero: int) -> Iterator[str]:
    tracks = _assign_tracks(spans)
    hosts = list(dict.fromkeys(host.host for host in run.hosts))
    pids = {name: number + 1 for number, name in enumerate(hosts)}
    pid_of_rank = [pids[host.host] for host in run.hosts]
    yield from map(json.dumps, _build_metadata(run, spans, tracks, pids))
    yield from _format_steps(spans, tracks, pid_of_rank, zero)
    yield from _format_phases(spans, tracks, pid_of_rank, zero)
    yield from _format_waits(spans, tracks, pid_of_rank, zero)
    yield from _format_loss(run, spans, zero)


def _assign_tracks(spans: SpanColumns) -> IntArray:
    """Return the thread number of every span, [N].

    Each rank has its main lane first, then one thread for each bucket, or background send, in
    flight at the same time.
    """
    first_tid, end_ns = spans.rank * TRACKS_PER_RANK + 1 + spans.lane * _PER_LANE, spans.end_ns
    # Of spans with the same start the longest comes first, so that the others nest in it.
    order = np.lexsort((-end_ns, spans.start_ns, first_tid))
    tid = first_tid.copy()
    for rows in np.split(order, np.flatnonzero(np.diff(first_tid[order])) + 1):
        packed = pack_tracks(spans.start_ns[rows], end_ns[rows])
        tid[rows] += np.minimum(packed, _PER_LANE - 1)
    return tid


def _build_metadata(
    run: RunData, spans: SpanColumns, tracks: IntArray, pids: Mapping[str, int]
) -> Iterable[PerfettoEvent]:
    yield {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "training"}}
    for host in run.hosts:
        pid = pids[host.host]
        first = host.host not in {h.host for h in run.hosts[: host.rank]}
        if first:
            label = f"{host.host} ({host.tier})" if host.tier else host.host
            yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": label}}
            yield {
                "ph": "M",
                "name": "process_sort_index",
                "pid": pid,
                "tid": 0,
                "args": {"sort_index": pid},
            }
        for tid in np.unique(tracks[spans.rank == host.rank]).tolist():
            name = _format_track_name(host.rank, (tid - 1) % TRACKS_PER_RANK)
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
            yield {
                "ph": "M",
                "name": "thread_sort_index",
                "pid": pid,
                "tid": tid,
                "args": {"sort_index": tid},
            }


def _format_track_name(rank: int, place: int) -> str:
    lane, place = divmod(place, _PER_LANE)
    if lane == Lane.MAIN:
        return f"rank {rank} overlap {place}" if place else f"rank {rank}"
    return f"rank {rank} {'buckets' if lane == Lane.BUCKETS else 'sends'} {place + 1}"


def _format_steps(
    spans: SpanColumns, tracks: IntArray, pids: Sequence[int], zero: int
) -> Iterator[str]:
    """Yield one enclosing bar per rank and step; evaluation is outside it."""
    inside: BoolArray = (tracks - 1) % TRACKS_PER_RANK == 0
    rows = spans.where(inside & (spans.phase != Phase.EVALUATE.code))
    if not len(rows):
        return
    order = np.lexsort((rows.step, rows.rank))
    rows = rows.where(order)
    new = np.flatnonzero(np.append(True, (np.diff(rows.step) != 0) | (np.diff(rows.rank) != 0)))
    start = np.minimum.reduceat(rows.start_ns, new)
    end = np.maximum.reduceat(rows.end_ns, new)
    columns = (rows.rank[new], rows.step[new], start, end)
    for rank, step, begin, finish in zip(*(c.tolist() for c in columns), strict=True):
        yield _format_bar(
            f"step {step}",
            pids[rank],
            rank * TRACKS_PER_RANK + 1,
            begin - zero,
            finish - begin,
            {},
        )


def _format_phases(
    spans: SpanColumns, tracks: IntArray, pids: Sequence[int], zero: int
) -> Iterator[str]:
    columns = (
        spans.rank,
        spans.step,
        spans.phase,
        spans.start_ns,
        spans.dur_ns,
        spans.bytes,
        spans.work,
        tracks,
    )
    for rank, step, phase, start, length, size, work, tid in zip(
        *(c.tolist() for c in columns), strict=True
    ):
        args = {"step": step}
        if size:
            args["bytes"] = size
        if work:
            args["samples"] = work
        yield _format_bar(_PHASES[phase].value, pids[rank], tid, start - zero, length, args)


def _format_waits(
    spans: SpanColumns, tracks: IntArray, pids: Sequence[int], zero: int
) -> Iterator[str]:
    """Yield the part of each collective in which a rank waited for the last to arrive."""
    communication = (spans.phase == Phase.COMM.code) & (spans.lane == Lane.MAIN)
    rows, tids = spans.where(communication), tracks[communication]
    waited = np.clip(find_latest_arrivals(rows) - rows.start_ns, 0, rows.dur_ns)
    columns = (rows.rank, rows.start_ns, waited, tids)
    for rank, start, length, tid in zip(*(c.tolist() for c in columns), strict=True):
        if length > 0:
            yield _format_bar("wait", pids[rank], tid, start - zero, length, {})


def _format_loss(run: RunData, spans: SpanColumns, zero: int) -> Iterator[str]:
    """Yield the loss of the first rank that has one, as a counter."""
    steps = run.steps.first(MOST_EVENTS)
    known = steps.where(np.isfinite(steps.loss))
    if not len(known) or not len(spans):
        return
    rows = known.where((known.rank == known.rank[0]) & (known.step <= spans.step.max()))
    for end, loss in zip(rows.end_ns.tolist(), rows.loss.tolist(), strict=True):
        yield json.dumps(
            {"ph": "C", "name": "loss", "pid": 0, "ts": (end - zero) / 1000, "args": {"loss": loss}}
        )


def _format_bar(
    name: str, pid: int, tid: int, start_ns: int, length_ns: int, args: Mapping[str, int]
) -> str:
    """Return a complete event; its times are microseconds with nanosecond digits."""
    head = (
        f'{{"ph":"X","name":"{name}","pid":{pid},"tid":{tid},'
        f'"ts":{_format_microseconds(start_ns)},"dur":{_format_microseconds(length_ns)}'
    )
    values = ", ".join([f'"{name}": {value}' for name, value in args.items()])
    return head + (f',"args":{{{values}}}}}' if args else "}")


def _format_microseconds(nanoseconds: int) -> str:
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"
