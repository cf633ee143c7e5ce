"""torch.profiler traces of all ranks of a training as one run: the ranks, the steps that all
recorded, and one clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np

from laggard.analysis.formats.import_run.imported_run import (
    RankStep,
    build_imported_run,
    build_rank_host,
)
from laggard.analysis.formats.kineto import JSON_SUFFIXES
from laggard.analysis.formats.kineto.step_phases import read_steps, to_rank_step
from laggard.analysis.formats.kineto.trace_file import RankTrace, read_rank_trace
from laggard.analysis.tables.load_run import RunData
from laggard.core.errors import TraceFormatError
from laggard.core.run_schema import TraceOrigin
from laggard.core.span_schema import NO_GROUP, Flag, Lane, Phase

_MAX_LISTED = 6


@dataclass(frozen=True)
class RankClockOffset:
    """What a rank's clock is ahead of rank 0's, and how far that may be off, in nanoseconds."""

    offset_ns: int = 0
    error_ns: int = 0


def read_kineto(path: Path) -> RunData:
    """The run that one file, or a folder with one file per rank, is the trace of.

    Raises:
        TraceFormatError: a file is not what it says, a rank is missing or there twice, or no step
            is in all.
    """
    files = (
        sorted(p for p in path.iterdir() if p.name.endswith(JSON_SUFFIXES))
        if path.is_dir()
        else [path]
    )
    traces = _order_by_rank(
        path, [read_rank_trace(file, only_file=len(files) == 1) for file in files]
    )
    steps_by_rank = {
        trace.rank: {step.window.step: to_rank_step(step, trace.rank) for step in read_steps(trace)}
        for trace in traces
    }
    common = sorted(set.intersection(*(set(steps) for steps in steps_by_rank.values())))
    if not common:
        details = "; ".join(
            f"rank {rank} has {_format_numbers(sorted(steps))}"
            for rank, steps in list(steps_by_rank.items())[:_MAX_LISTED]
        )
        raise TraceFormatError(
            str(path),
            "",
            f"no step is in the trace of every rank: {details}",
            "profile the same steps on all ranks",
        )
    steps = [steps_by_rank[trace.rank][number] for trace in traces for number in common]
    _check_collective_counts(path, steps)
    offsets = _estimate_clock_offsets(traces, steps)
    origin = TraceOrigin(
        format="kineto",
        path=path.name,
        notes=_list_import_notes(traces, steps_by_rank, common, steps, offsets),
    )
    hosts = tuple(
        build_rank_host(
            trace.rank,
            _format_host_name(trace, traces),
            device_class=trace.device or "cpu",
            offset_ns=offsets[trace.rank].offset_ns,
            error_ns=offsets[trace.rank].error_ns,
        )
        for trace in traces
    )
    corrected = [_shift_step(step, -offsets[step.rank].offset_ns) for step in steps]
    return build_imported_run(
        path, origin, corrected, hosts, f"{len(traces)} ranks, as torch.profiler saw them"
    )


def _order_by_rank(path: Path, traces: Sequence[RankTrace]) -> tuple[RankTrace, ...]:
    """In the order of ranks, which are all there, once."""
    found: dict[int, RankTrace] = {}
    for trace in traces:
        if trace.rank in found:
            problem = f"rank {trace.rank} is in {found[trace.rank].path.name} too"
            raise TraceFormatError(
                str(trace.path),
                "",
                problem,
                "keep one file per rank: one profiling cycle of one training",
            )
        found[trace.rank] = trace
    world = max(max(found) + 1, *(trace.world_size for trace in traces))
    if len(found) < world:
        missing = list(islice((rank for rank in range(world) if rank not in found), _MAX_LISTED))
        more = world - len(found) - len(missing)
        details = ", ".join(str(rank) for rank in missing) + (f" and {more} more" if more else "")
        problem = f"no trace of rank {details}, of {world} ranks"
        raise TraceFormatError(
            str(path), "", problem, "bring the traces of all ranks into one folder"
        )
    return tuple(found[rank] for rank in sorted(found))


def _check_collective_counts(path: Path, steps: Sequence[RankStep]) -> None:
    """In every step all ranks took part in as many collectives; otherwise who met whom cannot be
    told.
    """
    first: dict[int, tuple[int, int]] = {}
    for step in steps:
        count = sum(span.phase is Phase.COMM and span.lane == Lane.MAIN for span in step.spans)
        rank, usual = first.setdefault(step.step, (step.rank, count))
        if count != usual:
            problem = (
                f"rank {rank} took part in {usual} collectives and rank {step.rank} in {count}"
            )
            fix = "profile ranks that train together in one group, from the same step on"
            raise TraceFormatError(str(path), f"ProfilerStep#{step.step}", problem, fix)


def _estimate_clock_offsets(
    traces: Sequence[RankTrace], steps: Sequence[RankStep]
) -> Mapping[int, RankClockOffset]:
    """Ranks of one host share its clock. Others are brought together by the ends of collectives,
    which none leaves before all have come.
    """
    if len({trace.host for trace in traces}) <= 1:
        return {trace.rank: RankClockOffset() for trace in traces}
    ends: dict[int, dict[tuple[int, int], int]] = {}
    for step in steps:
        for span in step.spans:
            if span.lane == Lane.MAIN and span.group != NO_GROUP:
                ends.setdefault(step.rank, {})[step.step, span.group] = span.end_ns
    first = {trace.host: trace.rank for trace in reversed(traces)}
    reference = traces[0].rank
    known: dict[str, RankClockOffset] = {}
    for host, rank in first.items():
        shared = sorted(set(ends.get(rank, {})) & set(ends.get(reference, {})))
        apart = np.array([ends[rank][key] - ends[reference][key] for key in shared], dtype=np.int64)
        known[host] = (
            RankClockOffset(int(np.median(apart)), int(np.ptp(apart)) // 2 + 1)
            if len(apart) and rank != reference
            else RankClockOffset()
        )
    return {trace.rank: known[trace.host] for trace in traces}


def _shift_step(step: RankStep, by_ns: int) -> RankStep:
    if not by_ns:
        return step
    spans = tuple(
        replace(
            p,
            start_ns=p.start_ns + by_ns,
            end_ns=p.end_ns + by_ns,
            flags=p.flags | Flag.CLOCK_SUSPECT,
        )
        for p in step.spans
    )
    return replace(step, start_ns=step.start_ns + by_ns, end_ns=step.end_ns + by_ns, spans=spans)


def _format_host_name(trace: RankTrace, traces: Sequence[RankTrace]) -> str:
    """The host, and the rank where several share it."""
    if not trace.host:
        return f"rank-{trace.rank}"
    shared = sum(other.host == trace.host for other in traces) > 1
    return f"{trace.host}-rank-{trace.rank}" if shared else trace.host


def _list_import_notes(
    traces: Sequence[RankTrace],
    steps_by_rank: Mapping[int, Mapping[int, RankStep]],
    common: Sequence[int],
    steps: Sequence[RankStep],
    offsets: Mapping[int, RankClockOffset],
) -> tuple[str, ...]:
    details = []
    extra = sorted({number for own in steps_by_rank.values() for number in own} - set(common))
    if extra:
        details.append(f"Not every rank recorded step {_format_numbers(extra)}: left out.")
    hosts = {trace.host for trace in traces}
    if len(hosts) > 1:
        worst_ms = max(offset.error_ns for offset in offsets.values()) / 1e6
        details.append(
            f"The clocks of {len(hosts)} hosts cannot be compared by what the traces tell: they"
            f" were brought together by the ends of collectives, which lie up to {worst_ms:.3g} ms"
            " off; waits of that size say nothing."
        )
    elif not any(hosts) and len(traces) > 1:
        details.append("The traces do not tell their hosts: their clocks were taken for one.")
    if any(span.lane == Lane.BUCKETS for step in steps for span in step.spans):
        details.append(
            "Collectives ran beside computing; what counts as communication is only what ranks were"
            " held up by."
        )
    if (
        not any(span.phase is Phase.COMM for step in steps for span in step.spans)
        and len(traces) > 1
    ):
        details.append("No collective is in these traces, so nobody is seen to wait for anybody.")
    return tuple(details)


def _format_numbers(numbers: Sequence[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:_MAX_LISTED])
    return shown + (f" and {len(numbers) - _MAX_LISTED} more" if len(numbers) > _MAX_LISTED else "")
