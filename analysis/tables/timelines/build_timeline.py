"""Construction of a run's timeline from its spans.

The spans are processed in parts, which are then concatenated, so that a large run need not be in
memory as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from heapq import heapify, heappop, heappush
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from laggard.analysis.tables.columns import BoolArray, FloatArray, IntArray, SpanColumns
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.phase_times import (
    PHASES,
    SCATTERED,
    PhaseTimes,
    PlaceArray,
    ScatteredSpans,
    SecondsArray,
)
from laggard.analysis.tables.timelines.timeline import Timeline, find_latest_arrival
from laggard.core.errors import RunFolderError
from laggard.core.span_schema import Flag, Lane, Phase

_S = 1e-9
_MAX_CELLS_PER_SPAN, _FREE_CELLS = 16, 1 << 20
_SYNC_PHASES = (Phase.COMM.code, Phase.EVALUATE.code)
_STEP_FIELDS, _BARRIER_FIELDS = (
    ("steps", "warm_up", "samples"),
    ("barrier_step", "group", "is_post", "member", "arrival", "finish"),
)
_SCATTERED_FIELDS = (
    "scattered_step",
    "scattered_rank",
    "scattered_phase",
    "scattered_seconds",
    "scattered_place",
)
# `work` has fields of its own, which `TimelineBuilder` assembles separately.
_FIELDS = (*_STEP_FIELDS, *_BARRIER_FIELDS, *_SCATTERED_FIELDS)
_N = TypeVar("_N", np.float32, np.uint8)


@dataclass(frozen=True)
class TimelineChunk:
    """Some steps of a run, with the fields of `Timeline`.

    Barriers are in any order, but in one of their dependencies if some of them are posts. Ranks
    that are no members of a barrier have NaN as their times.
    """

    steps: IntArray
    warm_up: BoolArray
    samples: IntArray
    barrier_step: IntArray
    group: IntArray
    is_post: BoolArray
    member: BoolArray
    arrival: FloatArray
    finish: FloatArray
    work: PhaseTimes
    end: FloatArray


def build_timeline(run: RunData) -> Timeline:
    """Build the timeline of a run.

    Args:
        run: a loaded run; steps after the last one that every rank finished are left out.

    Returns:
        The timeline.

    Raises:
        RunFolderError: some rank recorded no step.
    """
    last = np.full(run.world_size, -1)
    builder = TimelineBuilder(run.world_size)
    for spans in iterate_kept_spans(run):
        np.maximum.at(last, spans.rank, spans.step)
        builder.add(build_part(spans, run.world_size))
    if not len(last) or last.min() < 0:
        lacking = [host.host for host, step in zip(run.hosts, last, strict=True) if step < 0]
        raise RunFolderError(
            f"{run.folder}: no training step was finished by {', '.join(lacking) or 'any rank'}, "
            "and the analysis needs one from every rank; read the files in its logs folder for the"
            " reason"
        )
    # The last common step is known only after all spans were read; if some rank went further, a
    # second pass leaves out the steps beyond it.
    if last.max() > last.min():
        builder = TimelineBuilder(run.world_size)
        for spans in iterate_kept_spans(run, int(last.min())):
            builder.add(build_part(spans, run.world_size))
    return builder.timeline(run.teams)


def iterate_kept_spans(run: RunData, until: int | None = None) -> Iterator[SpanColumns]:
    """Yield the spans of a run's timeline, in parts.

    These are main-lane spans from the first-step barrier on, of steps that their ranks finished.

    Args:
        run: a loaded run.
        until: number of the last step to include; None for all steps.
    """
    for spans in run.spans.parts():
        kept = ((spans.flags & Flag.TRUNCATED) == 0) & (spans.lane == Lane.MAIN)
        kept &= (spans.start_ns >= 0) & (spans.step >= 0)
        if until is not None:
            kept &= spans.step <= until
        if kept.any():
            yield spans.where(kept).ordered()


def build_part(spans: SpanColumns, world: int) -> TimelineChunk:
    """Build the timeline of some steps.

    Args:
        spans: ordered spans of the main lane, at least one.
        world: number of ranks.
    """
    begins = np.flatnonzero(np.diff(spans.step, prepend=spans.step[0] - 1))
    steps, step = (
        spans.step[begins],
        np.repeat(np.arange(len(begins)), np.diff(np.append(begins, len(spans)))),
    )
    require_dense(len(steps), world, len(spans))
    # Spans are ordered, so those of one step and rank are adjacent; `turns` are the first of each.
    cell = step * world + spans.rank
    turns = np.flatnonzero(np.diff(cell, prepend=-1))
    samples = np.zeros(len(steps) * world, dtype=np.int64)
    samples[cell[turns]] = np.maximum.reduceat(spans.work, turns)
    warm_up = np.zeros(len(steps), dtype=np.bool_)
    warm_up[step[(spans.flags & Flag.WARM_UP) != 0]] = True
    barriers, used = _find_barriers(spans, step, world)
    end = np.zeros(world)
    np.maximum.at(end, spans.rank, spans.end_ns * _S)
    return TimelineChunk(
        steps=steps,
        warm_up=warm_up,
        samples=samples.reshape(len(steps), world),
        barrier_step=barriers.step,
        group=barriers.group,
        is_post=barriers.is_post,
        member=barriers.member,
        arrival=barriers.arrival,
        finish=barriers.finish,
        work=_build_phase_times(
            spans, step, _count_places(used, cell, turns), used, (len(steps), world)
        ),
        end=end,
    )


def require_dense(steps: int, world: int, spans: int) -> None:
    """Require that a table of steps and ranks is not much larger than the spans that fill it.

    In a trace of a stranger, few spans may have many numbers of steps and ranks.

    Args:
        steps: number of steps.
        world: number of ranks.
        spans: number of spans.

    Raises:
        RunFolderError: most cells would be empty.
    """
    if steps * world > _MAX_CELLS_PER_SPAN * spans + _FREE_CELLS:
        raise RunFolderError(
            f"{spans} spans of {steps} steps and {world} ranks: most ranks have no span in most"
            " steps, so this is not the trace of a training — copy the run again"
        )


@dataclass(frozen=True)
class _Barriers:
    """Barriers of some steps, with the fields of `TimelineChunk`."""

    step: IntArray
    group: IntArray
    is_post: BoolArray
    member: BoolArray
    arrival: FloatArray
    finish: FloatArray

    def in_order(self, order: IntArray) -> _Barriers:
        """Return the barriers in another order."""
        return _Barriers(**{f.name: getattr(self, f.name)[order] for f in fields(self)})


def _find_barriers(spans: SpanColumns, step: IntArray, world: int) -> tuple[_Barriers, BoolArray]:
    """Return the barriers of some steps, and a mask of the spans that belong to them.

    A barrier is a collective that several ranks reached, or an evaluation pause that all ranks
    reached. A strategy numbers the collectives of a step, so spans with the same number belong to
    the same one. An asynchronous span is a post, for which the span with the next number waits.
    """
    rows = np.flatnonzero(np.isin(spans.phase, _SYNC_PHASES) & (spans.group >= 0))
    # Pauses get negative numbers, to be distinct from collectives.
    group = np.where(
        spans.phase[rows] == Phase.EVALUATE.code, -1 - spans.group[rows], spans.group[rows]
    )
    lowest = int(group.min(initial=0))
    several = int(group.max(initial=0)) - lowest + 1
    keys, index = np.unique(step[rows] * several + (group - lowest), return_inverse=True)
    index = index.reshape(-1)
    arrival = np.full((len(keys), world), np.nan)
    finish = arrival.copy()
    arrival[index, spans.rank[rows]] = spans.start_ns[rows] * _S
    finish[index, spans.rank[rows]] = spans.end_ns[rows] * _S
    member = ~np.isnan(arrival)
    of_step, number = keys // several, keys % several + lowest
    is_post = np.zeros(len(keys), dtype=np.bool_)
    is_post[index[(spans.flags[rows] & Flag.ASYNC) != 0]] = True
    # In a run with a single rank, its collectives count as barriers, too.
    real = member.sum(axis=1) >= np.where(number < 0, world, min(2, world))
    real |= is_post | (find_posts(of_step, number, is_post) >= 0)
    used = np.zeros(len(spans), dtype=np.bool_)
    used[rows[real[index]]] = True
    found = _Barriers(
        of_step[real],
        np.maximum(number[real], -1),
        is_post[real],
        member[real],
        arrival[real],
        finish[real],
    )
    if is_post.any():
        place = (np.cumsum(real) - 1)[index[real[index]]]
        found = found.in_order(_sort_by_dependencies(found, place, spans.rank[used]))
    return found, used


def find_posts(step: IntArray, group: IntArray, is_post: BoolArray) -> IntArray:
    """Return the row of the post that each barrier waits for, or -1, [E].

    Args:
        step: index of each barrier's step, [E].
        group: number of each barrier in its step, [E].
        is_post: mask of the posts, [E].
    """
    found = np.full(len(step), -1, dtype=np.int64)
    posts = np.flatnonzero(is_post)
    if not len(posts):
        return found
    several = int(group.max()) + 3
    keys = step * several + group + 2
    order = np.argsort(keys)
    awaited = keys[posts] + 1
    at = np.minimum(np.searchsorted(keys[order], awaited), len(keys) - 1)
    waiting = order[at]
    exists = (keys[waiting] == awaited) & ~is_post[waiting]
    found[waiting[exists]] = posts[exists]
    return found


def _sort_by_dependencies(barriers: _Barriers, visited: IntArray, rank: IntArray) -> IntArray:
    """Return an order of barriers in which each follows those that it depends on.

    Among several possible ones, the first to end comes first. Contradictory times, as of clocks
    that differ, allow no such order; then the time decides.

    Args:
        barriers: barriers of some steps.
        visited: barriers that ranks visited, each rank's in the order of its visits.
        rank: ranks of these visits.
    """
    posted = find_posts(barriers.step, barriers.group, barriers.is_post)
    latest = find_latest_arrival(barriers.arrival, barriers.member, posted)
    by_rank = np.argsort(rank, kind="stable")
    chain = visited[by_rank]
    same = np.flatnonzero(np.diff(rank[by_rank]) == 0)
    waits = np.flatnonzero(posted >= 0)
    before = np.concatenate([chain[same], posted[waits]]).tolist()
    after = np.concatenate([chain[same + 1], waits]).tolist()
    following: list[list[int]] = [[] for _ in latest]
    missing = [0] * len(latest)
    for first, second in zip(before, after, strict=True):
        following[first].append(second)
        missing[second] += 1
    key = list(zip(barriers.step.tolist(), latest.tolist(), range(len(latest)), strict=True))
    ready = [key[row] for row, count in enumerate(missing) if not count]
    heapify(ready)
    order: list[int] = []
    while ready:
        row = heappop(ready)[-1]
        order.append(row)
        for next_row in following[row]:
            missing[next_row] -= 1
            if not missing[next_row]:
                heappush(ready, key[next_row])
    if len(order) < len(latest):
        return np.lexsort((latest, barriers.step))
    return np.array(order, dtype=np.int64)


def _count_places(used: BoolArray, cell: IntArray, turns: IntArray) -> IntArray:
    """Return how many barriers of the step each span's rank had reached before the span."""
    before: IntArray = np.cumsum(used) - used
    place: IntArray = before - np.repeat(before[turns], np.diff(np.append(turns, len(cell))))
    return place


def _build_phase_times(
    spans: SpanColumns, step: IntArray, place: IntArray, used: BoolArray, shape: tuple[int, int]
) -> PhaseTimes:
    rows = np.flatnonzero(~used)
    world, phase, rank, taken = (
        shape[1],
        spans.phase[rows],
        spans.rank[rows],
        spans.dur_ns[rows] * _S,
    )
    cell = (phase * shape[0] + step[rows]) * world + rank
    size = PHASES * shape[0] * world
    seconds = (
        np.bincount(cell, weights=taken, minlength=size).astype(np.float32).reshape(PHASES, *shape)
    )
    # If all spans of a cell are at one place, a byte stores it. The spans of the other cells are
    # kept one by one.
    places = np.zeros(size, dtype=np.uint8)
    places[cell] = np.minimum(place[rows], SCATTERED - 1)
    several = np.zeros(size, dtype=np.bool_)
    several[cell[places[cell] != place[rows]]] = True
    places[several] = SCATTERED
    apart = several[cell]
    scattered = ScatteredSpans(
        step[rows][apart], rank[apart], phase[apart], taken[apart], place[rows][apart]
    )
    occurring = np.flatnonzero(np.bincount(phase, minlength=PHASES)).tolist()
    of_phase = places.reshape(PHASES, *shape)
    return PhaseTimes(
        shape=shape,
        seconds={code: seconds[code].copy() for code in occurring},
        place={code: of_phase[code].copy() for code in occurring},
        scattered=scattered,
        sent_s=_sum_sent_s(spans.where(rows[phase == Phase.COMM.code]), world),
    )


def _sum_sent_s(sends: SpanColumns, world: int) -> FloatArray:
    # Peers beyond the ranks: the server has number `world`; unknown peers get the last column.
    others = world + 2
    peer = np.where((sends.peer < 0) | (sends.peer > world), world + 1, sends.peer)
    sent = np.bincount(
        sends.rank * others + peer, weights=sends.dur_ns * _S, minlength=world * others
    )
    return sent.astype(np.float64).reshape(world, others)


class TimelineBuilder:
    """Builder of a timeline from consecutive chunks.

    Each field is held only once: its chunks are released when they are concatenated.
    """

    def __init__(self, world: int) -> None:
        self._world = world
        self._parts: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in _FIELDS}
        self._seconds: dict[int, dict[int, SecondsArray]] = {}
        self._place: dict[int, dict[int, PlaceArray]] = {}
        self._sent_s = np.zeros((world, world + 2))
        self._end = np.zeros(world)
        self._count = 0

    def add(self, chunk: TimelineChunk) -> None:
        """Add the next chunk."""
        first = self._count
        scattered = chunk.work.scattered
        moved = {
            "barrier_step": chunk.barrier_step + first,
            "scattered_step": scattered.step + first,
            "scattered_rank": scattered.rank,
            "scattered_phase": scattered.phase,
            "scattered_seconds": scattered.seconds,
            "scattered_place": scattered.place,
        }
        for name, parts in self._parts.items():
            parts.append(moved[name] if name in moved else getattr(chunk, name))
        for code, seconds in chunk.work.seconds.items():
            self._seconds.setdefault(code, {})[first] = seconds
            self._place.setdefault(code, {})[first] = chunk.work.place[code]
        self._sent_s += chunk.work.sent_s
        self._end = np.maximum(self._end, chunk.end)
        self._count += len(chunk.steps)

    def timeline(self, teams: tuple[tuple[int, ...], ...]) -> Timeline:
        """Return the timeline of all chunks, at least one; the builder is empty afterwards.

        Args:
            teams: ranks that do the same work.
        """
        barrier_step, group, member = (
            self._concatenate("barrier_step"),
            self._concatenate("group"),
            self._concatenate("member"),
        )
        arrival, finish = self._concatenate("arrival"), self._concatenate("finish")
        is_post = self._concatenate("is_post")
        posted = find_posts(barrier_step, group, is_post)
        latest = find_latest_arrival(arrival, member, posted)
        # Chunks have their barriers by step and group number; the timeline needs time order. Steps
        # with posts are in the order of their dependencies already, and follow one another.
        if is_post.any():
            of_posts = np.isin(barrier_step, barrier_step[is_post])
            order = np.lexsort((np.where(of_posts, 0.0, latest), barrier_step))
        else:
            order = np.argsort(latest, kind="stable")
        if (np.diff(order) < 0).any():
            barrier_step, group, member = barrier_step[order], group[order], member[order]
            arrival, finish, is_post = arrival[order], finish[order], is_post[order]
            posted = find_posts(barrier_step, group, is_post)
        # A rank that is no member passes a barrier in no time, at the end of its last one before.
        if not member.all():
            before = np.maximum.accumulate(np.where(member, finish, 0.0), axis=0)
            arrival, finish = np.where(member, arrival, before), np.where(member, finish, before)
        return Timeline(
            steps=self._concatenate("steps"),
            warm_up=self._concatenate("warm_up"),
            samples=self._concatenate("samples"),
            barrier_step=barrier_step,
            group=group,
            member=member,
            arrival=arrival,
            finish=finish,
            posted=posted,
            work=self._build_work(),
            end=self._end,
            teams=teams,
        )

    def _build_work(self) -> PhaseTimes:
        shape = (self._count, self._world)
        names = ("step", "rank", "phase", "seconds", "place")
        return PhaseTimes(
            shape=shape,
            seconds={
                code: _assemble_steps(self._seconds.pop(code), shape)
                for code in sorted(self._seconds)
            },
            place={
                code: _assemble_steps(self._place.pop(code), shape) for code in sorted(self._place)
            },
            scattered=ScatteredSpans(
                **{name: self._concatenate(f"scattered_{name}") for name in names}
            ),
            sent_s=self._sent_s,
        )

    def _concatenate(self, name: str) -> npt.NDArray[Any]:
        return np.concatenate(self._parts.pop(name))


def _assemble_steps(parts: dict[int, npt.NDArray[_N]], shape: tuple[int, int]) -> npt.NDArray[_N]:
    """Assemble parts, by the index of their first step, into one array; the rest is 0.

    The values of one rank are adjacent in memory, since they are read rank by rank.
    """
    whole = np.zeros(shape, dtype=next(iter(parts.values())).dtype, order="F")
    for first, part in parts.items():
        whole[first : first + len(part)] = part
    return whole
