"""Profiling cycles of one job, joined to consecutive steps.

torchtitan writes a folder `iteration_N` for every cycle of the profiler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from laggard.analysis.formats.import_run.imported_run import RankStep
from laggard.analysis.formats.kineto.ranks.rank_files import MAX_LISTED, RankRecording, read_cycle
from laggard.analysis.formats.kineto.ranks.trace_paths import TraceCycle


@dataclass(frozen=True)
class JoinedCycles:
    """Recordings of all ranks over all profiling cycles.

    Attributes:
        recordings: recordings in the order of ranks.
        cycle_of_step: index of the cycle of each step.
        notes: sentences on what was joined or left out.
    """

    recordings: tuple[RankRecording, ...]
    cycle_of_step: Mapping[int, int]
    notes: tuple[str, ...]


def read_cycles(cycles: Sequence[TraceCycle]) -> JoinedCycles:
    """Read the traces of all profiling cycles.

    If not all cycles have the same ranks, only the last one is used.

    Args:
        cycles: files of the cycles in order, at least one.

    Raises:
        TraceFormatError: a file is invalid, or the files of a cycle do not belong together.
    """
    read = [read_cycle(cycle) for cycle in cycles]
    if len(read) == 1:
        return _join(read, ())
    names = ", ".join(cycle.name for cycle in cycles[:MAX_LISTED])
    names += f" and {len(cycles) - MAX_LISTED} more" if len(cycles) > MAX_LISTED else ""
    if len({_get_identity(each) for each in read}) > 1:
        note = (
            f"The folders {names} have traces of different ranks, so only the last one,"
            f" {cycles[-1].name}, was read."
        )
        return _join(read[-1:], (note,))
    note = (
        f"The traces of {len(cycles)} profiling cycles ({names}) follow one another here; the time"
        " between them was left out."
    )
    return _join(read, (note,))


def close_gaps(steps: Sequence[RankStep], cycle_of_step: Mapping[int, int]) -> list[RankStep]:
    """Move the steps of every profiling cycle to the end of the cycle before.

    Args:
        steps: steps of all ranks, on one clock.
        cycle_of_step: index of the cycle of each step.
    """
    cycles = sorted(set(cycle_of_step.values()))
    if len(cycles) == 1:
        return list(steps)
    own = {n: [step for step in steps if cycle_of_step[step.step] == n] for n in cycles}
    moved, over_ns = [], None
    for n in (n for n in cycles if own[n]):
        start_ns = min(step.start_ns for step in own[n])
        by_ns = 0 if over_ns is None else over_ns - start_ns
        moved += [shift_step(step, by_ns) for step in own[n]]
        over_ns = max(step.end_ns for step in own[n]) + by_ns
    return moved


def shift_step(step: RankStep, by_ns: int) -> RankStep:
    """Return a step at another time.

    Args:
        step: step of one rank.
        by_ns: nanoseconds by which it is later.
    """
    if not by_ns:
        return step
    spans = tuple(span.move(span.start_ns + by_ns, span.end_ns + by_ns) for span in step.spans)
    return replace(step, start_ns=step.start_ns + by_ns, end_ns=step.end_ns + by_ns, spans=spans)


def _get_identity(recordings: Sequence[RankRecording]) -> tuple[object, ...]:
    """Return what all cycles of one job have in common."""
    return tuple((each.rank, each.world_size, each.source) for each in recordings)


def _join(read: Sequence[tuple[RankRecording, ...]], notes: tuple[str, ...]) -> JoinedCycles:
    numbers = [sorted({n for each in own for n in each.steps}) for own in read]
    ascending = all(before[-1] < after[0] for before, after in pairwise(numbers))
    first, cycle_of_step = 0, {}
    shifted: list[tuple[RankRecording, ...]] = []
    for n, (own, found) in enumerate(zip(read, numbers, strict=True)):
        by = 0 if ascending else first - found[0]
        shifted.append(tuple(each.renumber(by) for each in own))
        cycle_of_step.update({number + by: n for number in found})
        first = found[-1] + by + 1
    recordings = tuple(
        replace(own[0], steps={number: step for each in own for number, step in each.steps.items()})
        for own in zip(*shifted, strict=True)
    )
    return JoinedCycles(recordings, cycle_of_step, notes)
