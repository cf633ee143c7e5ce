"""Reader of the flight recorder's dumps of all ranks of a training, as one run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from laggard.analysis.formats.flight_recorder.collectives import (
    JoinedCollective,
    join_collectives,
    split_steps,
)
from laggard.analysis.formats.flight_recorder.dump_file import CollectiveKey, RankDump, read_dump
from laggard.analysis.formats.import_run.imported_run import (
    RankStep,
    build_imported_run,
    build_rank_host,
)
from laggard.analysis.formats.import_run.main_lane import TraceSpan, build_main_lane
from laggard.analysis.formats.trace_json.json_file import list_json_files
from laggard.analysis.tables.load_run import RunData
from laggard.core.errors import TraceFormatError
from laggard.core.run_schema import TraceOrigin
from laggard.core.span_schema import Phase

_MAX_LISTED = 6
_NO_COMPUTATION = (
    "The flight recorder records no computation and no steps. A step is the shortest sequence of"
    " collectives that repeats, and all time between collectives counts as backward."
)
_UNTIMED = (
    "The dumps have no durations, so a rank arrives when its host launches a collective, by the"
    " clock of that host. For the times of the devices, record with TORCH_NCCL_ENABLE_TIMING=1."
)


def read_flight_recorder(path: Path) -> RunData:
    """Read a run from a folder with one dump per rank.

    Raises:
        TraceFormatError: a file is invalid, a rank is missing or occurs twice, or no collective is
            in the dumps of all ranks.
    """
    files = list_json_files(path)
    dumps = _order_by_rank(path, [read_dump(file, only_file=len(files) == 1) for file in files])
    collectives = join_collectives(dumps)
    steps = split_steps(collectives, len(dumps))
    if not steps:
        raise TraceFormatError(
            str(path),
            "",
            f"no completed collective is in the dumps of all {len(dumps)} ranks",
            "dump all ranks of the training at the same time, and set TORCH_NCCL_TRACE_BUFFER_SIZE"
            " to a larger number, such as 20000",
        )
    return build_imported_run(
        path,
        TraceOrigin(
            format="flight_recorder",
            path=path.name,
            notes=tuple(_list_notes(dumps, collectives, steps)),
        ),
        [step for dump in dumps for step in _build_rank_steps(steps, dump.rank)],
        tuple(build_rank_host(dump.rank, f"rank-{dump.rank}") for dump in dumps),
        f"{len(dumps)} ranks, recorded by torch's flight recorder",
    )


def _order_by_rank(path: Path, dumps: Sequence[RankDump]) -> tuple[RankDump, ...]:
    found: dict[int, RankDump] = {}
    for dump in dumps:
        if dump.rank in found:
            problem = f"rank {dump.rank} is also in {found[dump.rank].path.name}"
            raise TraceFormatError(str(dump.path), "", problem, "keep one dump per rank")
        found[dump.rank] = dump
    missing = sorted(set(range(min(max(found) + 1, len(found) + _MAX_LISTED))) - set(found))
    if missing:
        details = ", ".join(map(str, missing[:_MAX_LISTED]))
        raise TraceFormatError(
            str(path),
            "",
            f"the dumps of rank {details} of {max(found) + 1} ranks are missing",
            "put the dumps of all ranks into one folder",
        )
    return tuple(found[rank] for rank in sorted(found))


def _build_rank_steps(steps: Sequence[Sequence[JoinedCollective]], rank: int) -> Iterator[RankStep]:
    begin = min(min(each.arrivals_ns.values()) for each in steps[0])
    for number, collectives in enumerate(steps):
        waits = [
            TraceSpan(Phase.COMM, max(begin, each.arrivals_ns[rank]), each.end_ns, group=group)
            for group, each in enumerate(collectives)
            if rank in each.arrivals_ns
        ]
        end = max(begin, *(each.end_ns for each in collectives))
        work = [TraceSpan(Phase.BACKWARD, begin, end)]
        yield RankStep(number, rank, begin, end, build_main_lane(work, waits))
        begin = end


def _list_notes(
    dumps: Sequence[RankDump],
    collectives: Sequence[JoinedCollective],
    steps: Sequence[Sequence[JoinedCollective]],
) -> Iterator[str]:
    yield _NO_COMPUTATION
    if not all(each.timed for each in collectives):
        yield _UNTIMED
    left_out = len(collectives) - sum(len(step) for step in steps)
    if left_out:
        yield f"Collectives of incomplete steps were left out: {left_out}."
    point_to_point = sum(dump.point_to_point for dump in dumps)
    if point_to_point:
        yield f"Sends and receives were not read: {point_to_point}."
    yield from _describe_pending(dumps)


def _describe_pending(dumps: Sequence[RankDump]) -> Iterator[str]:
    """Yield one sentence for each process group with a collective that was not over."""
    first: dict[str, CollectiveKey] = {}
    for key in sorted(key for dump in dumps for key in dump.pending):
        first.setdefault(key.group, key)
    for key in list(first.values())[:_MAX_LISTED]:
        name = next(dump.pending[key].name for dump in dumps if key in dump.pending)
        absent = [
            dump.rank
            for dump in dumps
            if any(own.group == key.group for own in dump.collectives)
            and key not in dump.pending
            and key not in dump.collectives
        ]
        shown = ", ".join(map(str, absent[:_MAX_LISTED]))
        shown += f" and {len(absent) - _MAX_LISTED} more" if len(absent) > _MAX_LISTED else ""
        yield f"{name} number {key.sequence} of process group {key.group} was not over" + (
            f": rank {shown} had not launched it." if absent else "."
        )
