"""torch.profiler traces of all ranks of a training as one run: the ranks, the steps that all
recorded, and one clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np

from laggard.analysis.formats.imported import RankStep, imported_run, rank_host
from laggard.analysis.formats.kineto_file import RankTrace, read_rank
from laggard.analysis.formats.kineto_steps import rank_step, steps_of
from laggard.analysis.formats.recognise import JSON_ENDINGS
from laggard.analysis.load import Run
from laggard.errors import TraceFormatError
from laggard.run_schema import Origin
from laggard.span_schema import NO_GROUP, Flag, Lane, Phase

_MOST_TOLD = 6


@dataclass(frozen=True)
class Offset:
    """What a rank's clock is ahead of rank 0's, and how far that may be off, in nanoseconds."""

    offset_ns: int = 0
    error_ns: int = 0


def read_kineto(path: Path) -> Run:
    """The run that one file, or a folder with one file per rank, is the trace of.

    Raises:
        TraceFormatError: a file is not what it says, a rank is missing or there twice, or no step
            is in all.
    """
    files = (
        sorted(p for p in path.iterdir() if p.name.endswith(JSON_ENDINGS))
        if path.is_dir()
        else [path]
    )
    traces = _by_rank(path, [read_rank(file, alone=len(files) == 1) for file in files])
    taken = {
        trace.rank: {step.window.step: rank_step(step, trace.rank) for step in steps_of(trace)}
        for trace in traces
    }
    common = sorted(set.intersection(*(set(steps) for steps in taken.values())))
    if not common:
        told = "; ".join(
            f"rank {rank} has {_some(sorted(steps))}"
            for rank, steps in list(taken.items())[:_MOST_TOLD]
        )
        raise TraceFormatError(
            str(path),
            "",
            f"no step is in the trace of every rank: {told}",
            "profile the same steps on all ranks",
        )
    steps = [taken[trace.rank][number] for trace in traces for number in common]
    _check_meetings(path, steps)
    offsets = _offsets(traces, steps)
    origin = Origin(
        format="kineto", path=path.name, notes=_notes(traces, taken, common, steps, offsets)
    )
    hosts = tuple(
        rank_host(
            trace.rank,
            _host_name(trace, traces),
            device_class=trace.device or "cpu",
            offset_ns=offsets[trace.rank].offset_ns,
            error_ns=offsets[trace.rank].error_ns,
        )
        for trace in traces
    )
    corrected = [_shifted(step, -offsets[step.rank].offset_ns) for step in steps]
    return imported_run(
        path, origin, corrected, hosts, f"{len(traces)} ranks, as torch.profiler saw them"
    )


def _by_rank(path: Path, traces: Sequence[RankTrace]) -> tuple[RankTrace, ...]:
    """In the order of ranks, which are all there, once."""
    found: dict[int, RankTrace] = {}
    for trace in traces:
        if trace.rank in found:
            wrong = f"rank {trace.rank} is in {found[trace.rank].path.name} too"
            raise TraceFormatError(
                str(trace.path),
                "",
                wrong,
                "keep one file per rank: one profiling cycle of one training",
            )
        found[trace.rank] = trace
    world = max(max(found) + 1, *(trace.world_size for trace in traces))
    if len(found) < world:
        missing = list(islice((rank for rank in range(world) if rank not in found), _MOST_TOLD))
        more = world - len(found) - len(missing)
        told = ", ".join(str(rank) for rank in missing) + (f" and {more} more" if more else "")
        wrong = f"no trace of rank {told}, of {world} ranks"
        raise TraceFormatError(
            str(path), "", wrong, "bring the traces of all ranks into one folder"
        )
    return tuple(found[rank] for rank in sorted(found))


def _check_meetings(path: Path, steps: Sequence[RankStep]) -> None:
    """In every step all ranks took part in as many collectives; otherwise who met whom cannot be
    told.
    """
    first: dict[int, tuple[int, int]] = {}
    for step in steps:
        count = sum(piece.phase is Phase.COMM and piece.lane == Lane.MAIN for piece in step.pieces)
        rank, usual = first.setdefault(step.step, (step.rank, count))
        if count != usual:
            wrong = f"rank {rank} took part in {usual} collectives and rank {step.rank} in {count}"
            fix = "profile ranks that train together in one group, from the same step on"
            raise TraceFormatError(str(path), f"ProfilerStep#{step.step}", wrong, fix)


def _offsets(traces: Sequence[RankTrace], steps: Sequence[RankStep]) -> Mapping[int, Offset]:
    """Ranks of one host share its clock. Others are brought together by the ends of collectives,
    which none leaves before all have come.
    """
    if len({trace.host for trace in traces}) <= 1:
        return {trace.rank: Offset() for trace in traces}
    ends: dict[int, dict[tuple[int, int], int]] = {}
    for step in steps:
        for piece in step.pieces:
            if piece.lane == Lane.MAIN and piece.group != NO_GROUP:
                ends.setdefault(step.rank, {})[step.step, piece.group] = piece.end_ns
    first = {trace.host: trace.rank for trace in reversed(traces)}
    reference = traces[0].rank
    known: dict[str, Offset] = {}
    for host, rank in first.items():
        shared = sorted(set(ends.get(rank, {})) & set(ends.get(reference, {})))
        apart = np.array([ends[rank][key] - ends[reference][key] for key in shared], dtype=np.int64)
        known[host] = (
            Offset(int(np.median(apart)), int(np.ptp(apart)) // 2 + 1)
            if len(apart) and rank != reference
            else Offset()
        )
    return {trace.rank: known[trace.host] for trace in traces}


def _shifted(step: RankStep, by_ns: int) -> RankStep:
    if not by_ns:
        return step
    pieces = tuple(
        replace(
            p,
            start_ns=p.start_ns + by_ns,
            end_ns=p.end_ns + by_ns,
            flags=p.flags | Flag.CLOCK_SUSPECT,
        )
        for p in step.pieces
    )
    return replace(step, start_ns=step.start_ns + by_ns, end_ns=step.end_ns + by_ns, pieces=pieces)


def _host_name(trace: RankTrace, traces: Sequence[RankTrace]) -> str:
    """The host, and the rank where several share it."""
    if not trace.host:
        return f"rank-{trace.rank}"
    shared = sum(other.host == trace.host for other in traces) > 1
    return f"{trace.host}-rank-{trace.rank}" if shared else trace.host


def _notes(
    traces: Sequence[RankTrace],
    taken: Mapping[int, Mapping[int, RankStep]],
    common: Sequence[int],
    steps: Sequence[RankStep],
    offsets: Mapping[int, Offset],
) -> tuple[str, ...]:
    told = []
    extra = sorted({number for own in taken.values() for number in own} - set(common))
    if extra:
        told.append(f"Not every rank recorded step {_some(extra)}: left out.")
    hosts = {trace.host for trace in traces}
    if len(hosts) > 1:
        worst_ms = max(offset.error_ns for offset in offsets.values()) / 1e6
        told.append(
            f"The clocks of {len(hosts)} hosts cannot be compared by what the traces tell: they"
            f" were brought together by the ends of collectives, which lie up to {worst_ms:.3g} ms"
            " off; waits of that size say nothing."
        )
    elif not any(hosts) and len(traces) > 1:
        told.append("The traces do not tell their hosts: their clocks were taken for one.")
    if any(piece.lane == Lane.BUCKETS for step in steps for piece in step.pieces):
        told.append(
            "Collectives ran beside computing; what counts as communication is only what ranks were"
            " held up by."
        )
    if (
        not any(piece.phase is Phase.COMM for step in steps for piece in step.pieces)
        and len(traces) > 1
    ):
        told.append("No collective is in these traces, so nobody is seen to wait for anybody.")
    return tuple(told)


def _some(numbers: Sequence[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:_MOST_TOLD])
    return shown + (f" and {len(numbers) - _MOST_TOLD} more" if len(numbers) > _MOST_TOLD else "")
