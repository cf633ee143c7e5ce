"""Reader of the torch.profiler traces of all ranks of a training, as one run.

It checks the ranks, selects the steps that all recorded, and aligns the clocks.
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
    """Offset of a rank's clock from rank 0's, and its possible error, in nanoseconds."""

    offset_ns: int = 0
    error_ns: int = 0


def read_kineto(path: Path) -> RunData:
    """Read a run from one file, or from a folder with one file per rank.

    Raises:
        TraceFormatError: a file is invalid, a rank is missing or occurs twice, or no step is in
            the traces of all ranks.
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
            f"no step occurs in the traces of all ranks: {details}",
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
        path, origin, corrected, hosts, f"{len(traces)} ranks, recorded by torch.profiler"
    )


def _order_by_rank(path: Path, traces: Sequence[RankTrace]) -> tuple[RankTrace, ...]:
    """Return the traces in the order of ranks, after a check that each rank has exactly one."""
    found: dict[int, RankTrace] = {}
    for trace in traces:
        if trace.rank in found:
            problem = f"rank {trace.rank} is also in {found[trace.rank].path.name}"
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
        problem = f"the traces of rank {details} of {world} ranks are missing"
        raise TraceFormatError(
            str(path), "", problem, "put the traces of all ranks into one folder"
        )
    return tuple(found[rank] for rank in sorted(found))


def _check_collective_counts(path: Path, steps: Sequence[RankStep]) -> None:
    """Raise an error unless all ranks took part in the same number of collectives in every step.

    Collectives are matched between ranks by their number in the step.
    """
    first: dict[int, tuple[int, int]] = {}
    for step in steps:
        count = sum(span.phase is Phase.COMM and span.lane == Lane.MAIN for span in step.spans)
        rank, usual = first.setdefault(step.step, (step.rank, count))
        if count != usual:
            problem = (
                f"rank {rank} took part in {usual} collectives and rank {step.rank} in {count}"
            )
            fix = "profile ranks that train together in one group, beginning at the same step"
            raise TraceFormatError(str(path), f"ProfilerStep#{step.step}", problem, fix)


def _estimate_clock_offsets(
    traces: Sequence[RankTrace], steps: Sequence[RankStep]
) -> Mapping[int, RankClockOffset]:
    """Return the clock offset of every rank.

    Ranks of one host share its clock. The clocks of other hosts are aligned by the ends of
    collectives, which no rank leaves before all have arrived.
    """
    # Traces without a host name have the name "", so they count as one host.
    if len({trace.host for trace in traces}) <= 1:
        return {trace.rank: RankClockOffset() for trace in traces}
    ends: dict[int, dict[tuple[int, int], int]] = {}
    for step in steps:
        for span in step.spans:
            if span.lane == Lane.MAIN and span.group != NO_GROUP:
                ends.setdefault(step.rank, {})[step.step, span.group] = span.end_ns
    # Reversed, so that the lowest rank of each host is the last to be entered and remains.
    first = {trace.host: trace.rank for trace in reversed(traces)}
    reference = traces[0].rank
    known: dict[str, RankClockOffset] = {}
    for host, rank in first.items():
        shared = sorted(set(ends.get(rank, {})) & set(ends.get(reference, {})))
        apart = np.array([ends[rank][key] - ends[reference][key] for key in shared], dtype=np.int64)
        known[host] = (
            # The error is half the range of the differences, rounded up.
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
    """Return the host's name, with the rank if several ranks share the host."""
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
        details.append(
            f"Not every rank recorded step {_format_numbers(extra)}; such steps were left out."
        )
    hosts = {trace.host for trace in traces}
    if len(hosts) > 1:
        worst_ms = max(offset.error_ns for offset in offsets.values()) / 1e6
        details.append(
            f"The traces do not relate the clocks of their {len(hosts)} hosts. The clocks were"
            f" aligned by the ends of collectives, with an error of up to {worst_ms:.3g} ms;"
            " shorter waits are not significant."
        )
    elif not any(hosts) and len(traces) > 1:
        details.append("The traces do not name their hosts; one common clock was assumed.")
    if any(span.lane == Lane.BUCKETS for step in steps for span in step.spans):
        details.append(
            "Collectives overlapped computation; only the time that they blocked ranks counts as"
            " communication."
        )
    if (
        not any(span.phase is Phase.COMM for step in steps for span in step.spans)
        and len(traces) > 1
    ):
        details.append("The traces contain no collective, so no waits between ranks are known.")
    return tuple(details)


def _format_numbers(numbers: Sequence[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:_MAX_LISTED])
    return shown + (f" and {len(numbers) - _MAX_LISTED} more" if len(numbers) > _MAX_LISTED else "")
