"""Reader of a Horovod timeline as a run.

A step is one negotiation of every tensor that is reduced in every step. The tensors of a step are
reduced while the backward pass goes on, so they form one synchronization: a rank works until its
last tensor is ready, and then waits until the last operation is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from laggard.analysis.formats.horovod.timeline_file import (
    HorovodTimeline,
    Negotiation,
    read_timeline,
)
from laggard.analysis.formats.import_run.imported_run import (
    RankStep,
    build_imported_run,
    build_rank_host,
)
from laggard.analysis.formats.import_run.main_lane import TraceSpan, build_main_lane
from laggard.analysis.tables.load_run import RunData
from laggard.core.errors import TraceFormatError
from laggard.core.run_schema import TraceOrigin
from laggard.core.span_schema import Flag, Lane, Phase

_NS_PER_US = 1000
_NO_COMPUTATION = (
    "Horovod records no computation and no steps. A step is one negotiation of every tensor, and"
    " the whole time until a rank's last tensor is ready counts as backward."
)
_COARSE = (
    "The time at which a rank is ready is the time at which the coordinator knew it, so it is as"
    " coarse as the cycle (HOROVOD_CYCLE_TIME, in milliseconds)."
)
_NO_CACHE = "record it with HOROVOD_CACHE_CAPACITY=0, so that every step is negotiated"


@dataclass(frozen=True)
class _Steps:
    """Negotiations of every step, and the number of other negotiations."""

    steps: Sequence[Sequence[Negotiation]]
    left_out: int


def read_horovod(path: Path) -> RunData:
    """Read a run from a timeline.

    Raises:
        TraceFormatError: the file is invalid, or contains no negotiation of several ranks.
    """
    timeline = read_timeline(path)
    world = 1 + max((max(each.ready_us, default=0) for each in timeline.negotiations), default=0)
    if world == 1:
        raise TraceFormatError(
            str(path), "", "no negotiation has ticks of several ranks", _NO_CACHE
        )
    found = _split_steps(timeline.negotiations, world)
    if not found.steps:
        raise TraceFormatError(
            str(path), "", f"no negotiation has a tick of each of {world} ranks", _NO_CACHE
        )
    ranks = range(world)
    return build_imported_run(
        path,
        TraceOrigin(format="horovod", path=path.name, notes=_list_notes(timeline, found)),
        [step for rank in ranks for step in _build_rank_steps(found.steps, rank)],
        tuple(build_rank_host(rank, f"rank-{rank}") for rank in ranks),
        f"{world} ranks, recorded by Horovod",
    )


def _split_steps(negotiations: Sequence[Negotiation], world: int) -> _Steps:
    """Return the negotiations by step.

    The tensors of a step are those that are negotiated as often as most others. The parameters that
    are broadcast once, for instance, have no part in any step.
    """
    complete = [each for each in negotiations if len(each.ready_us) == world]
    per_tensor = Counter((each.tensor, each.kind) for each in complete)
    # The most common number of negotiations; of two, the larger.
    usual = max(Counter(per_tensor.values()).items(), key=lambda item: item[::-1], default=(0, 0))
    steps: list[list[Negotiation]] = [[] for _ in range(usual[0])]
    seen: Counter[tuple[int, str]] = Counter()
    for each in complete:
        key = (each.tensor, each.kind)
        if per_tensor[key] == usual[0]:
            steps[seen[key]].append(each)
            seen[key] += 1
    return _Steps(steps, len(negotiations) - sum(len(step) for step in steps))


def _build_rank_steps(steps: Sequence[Sequence[Negotiation]], rank: int) -> list[RankStep]:
    built = []
    begin = min(tick for each in steps[0] for tick in each.ready_us.values()) * _NS_PER_US
    for number, negotiations in enumerate(steps):
        operations = [
            TraceSpan(
                Phase.COMM,
                each.ready_us[rank] * _NS_PER_US,
                max(each.end_us, *each.ready_us.values()) * _NS_PER_US,
                group=0,
                lane=Lane.BUCKETS,
                flags=Flag.ASYNC,
            )
            for each in negotiations
        ]
        end = max(begin, *(span.end_ns for span in operations))
        ready = min(max(begin, *(span.start_ns for span in operations)), end)
        main = build_main_lane(
            [TraceSpan(Phase.BACKWARD, begin, ready)], [TraceSpan(Phase.COMM, ready, end, group=0)]
        )
        built.append(RankStep(number, rank, begin, end, (*main, *operations)))
        begin = end
    return built


def _list_notes(timeline: HorovodTimeline, found: _Steps) -> tuple[str, ...]:
    notes = [_NO_COMPUTATION, _COARSE]
    if found.left_out:
        notes.append(
            "Negotiations that some rank did not join, or of tensors that are not part of every"
            f" step, were left out: {found.left_out}."
        )
    if timeline.unnegotiated:
        notes.append(
            "Operations that the response cache answered have no ticks, so nothing is known of who"
            f" was late: {timeline.unnegotiated}. To see them, {_NO_CACHE}."
        )
    return tuple(notes)
