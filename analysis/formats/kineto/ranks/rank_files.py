"""Recordings of the ranks of one job, in the order of ranks.

Files that do not belong together are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from laggard.analysis.formats.kineto.device_steps import build_device_step, has_device_events
from laggard.analysis.formats.kineto.host_steps import build_host_step
from laggard.analysis.formats.kineto.process_groups import GroupConfig, resolve_labels
from laggard.analysis.formats.kineto.ranks.trace_paths import TraceCycle
from laggard.analysis.formats.kineto.step_trace import StepTrace
from laggard.analysis.formats.kineto.step_windows import StepSource, find_step_windows
from laggard.analysis.formats.kineto.trace_file import RankTrace, read_rank_trace
from laggard.core.errors import TraceFormatError

MAX_LISTED = 6
"""Largest number of ranks or steps that a message lists."""
_DAY_NS = 86_400_000_000_000
# Times after the year 2001 are those of a calendar clock; others begin at any moment.
_CALENDAR_NS = 1_000_000_000_000_000_000


@dataclass(frozen=True)
class RankRecording:
    """Steps that one rank recorded.

    Attributes:
        path: file of the trace.
        rank: number of the rank in the job.
        world_size: number of ranks of the job, or 0 if unknown.
        host: name of the host, or "".
        device: name of the device, or "".
        source: origin of the steps.
        steps: steps by number.
        content: hash of the times of all events.
        unread_categories: number of events of a device in each category that is not known.
        repairs: one phrase for each kind of fault that was repaired in the file.
        groups: process groups of the rank.
    """

    path: Path
    rank: int
    world_size: int
    host: str
    device: str
    source: StepSource
    steps: Mapping[int, StepTrace]
    content: int
    unread_categories: Mapping[str, int]
    repairs: tuple[str, ...]
    groups: GroupConfig

    @property
    def start_ns(self) -> int:
        """Return the start of the first step."""
        return min(step.window.start_ns for step in self.steps.values())

    def renumber(self, by: int) -> RankRecording:
        """Return the same steps with numbers that are larger by a constant."""
        steps = {
            number + by: replace(step, window=replace(step.window, step=number + by))
            for number, step in self.steps.items()
        }
        return replace(self, steps=steps)


def read_cycle(cycle: TraceCycle) -> tuple[RankRecording, ...]:
    """Read the traces of one profiling cycle, in the order of ranks.

    Args:
        cycle: files of the cycle.

    Raises:
        TraceFormatError: a file is invalid, a rank occurs twice, or the files are from several
            runs.
    """
    found: dict[int, RankRecording] = {}
    for file in cycle.files:
        trace = read_rank_trace(file, only_file=len(cycle.files) == 1)
        _require_new_rank(trace, found)
        found[trace.rank] = _read_recording(trace)
    recordings = tuple(found[rank] for rank in sorted(found))
    _require_one_world(recordings)
    _require_one_day(recordings)
    return _align_inferred_steps(recordings)


def _read_recording(trace: RankTrace) -> RankRecording:
    steps, world = find_step_windows(trace), _find_world_size(trace)
    labels = resolve_labels(trace.labels, trace.groups, world)
    # A trace with any device event is read by its kernels; the host only launches them.
    build_step = build_device_step if has_device_events(trace.events) else build_host_step
    return RankRecording(
        unread_categories=trace.unread_categories,
        repairs=trace.repairs,
        groups=trace.groups,
        path=trace.path,
        rank=trace.rank,
        world_size=world,
        host=trace.host,
        device=trace.device,
        source=steps.source,
        steps={
            window.step: build_step(trace.events, window, steps, labels) for window in steps.windows
        },
        content=_hash_content(trace),
    )


def _find_world_size(trace: RankTrace) -> int:
    """Return the number of ranks of the job; some versions of torch record that of a group."""
    sizes = [*trace.groups.sizes.values(), *(max(r) + 1 for r in trace.groups.ranks.values())]
    return max([trace.world_size, *sizes])


def _hash_content(trace: RankTrace) -> int:
    events = trace.events
    return hash((len(events), events.start_ns.tobytes(), events.end_ns.tobytes()))


def _require_new_rank(trace: RankTrace, found: Mapping[int, RankRecording]) -> None:
    other = found.get(trace.rank)
    if other is None:
        return
    same = other.content == _hash_content(trace)
    raise TraceFormatError(
        str(trace.path),
        "",
        f"rank {trace.rank} is also in {other.path.name}"
        + (", with the same events" if same else ""),
        "remove one of the two files"
        if same
        else "keep one file per rank: one profiling cycle of one training",
    )


def _require_one_world(recordings: Sequence[RankRecording]) -> None:
    sized = [each for each in recordings if each.world_size]
    for each in sized:
        if each.world_size != sized[0].world_size:
            raise TraceFormatError(
                str(each.path),
                "distributedInfo.world_size",
                f"this rank belongs to a job of {each.world_size} ranks, and the one in"
                f" {sized[0].path.name} to a job of {sized[0].world_size}",
                "keep the traces of one run only",
            )
    for each in recordings:
        if sized and each.rank >= sized[0].world_size:
            raise TraceFormatError(
                str(each.path),
                "distributedInfo.rank",
                f"rank {each.rank} is not below the number of ranks, {sized[0].world_size}",
                "keep the traces of one run only",
            )


def _require_one_day(recordings: Sequence[RankRecording]) -> None:
    dated = sorted(
        (each for each in recordings if each.start_ns > _CALENDAR_NS),
        key=lambda each: each.start_ns,
    )
    for before, after in pairwise(dated):
        days = (after.start_ns - before.start_ns) / _DAY_NS
        if days > 1:
            raise TraceFormatError(
                str(after.path),
                "baseTimeNanoseconds",
                f"its first step is {days:.3g} days after that of {before.path.name}, so the two"
                " files are of different runs",
                "keep the traces of one run only",
            )


def _align_inferred_steps(recordings: tuple[RankRecording, ...]) -> tuple[RankRecording, ...]:
    """Require that the steps of all ranks have one source, and number inferred steps by time.

    Ranks may begin to record at different steps.
    """
    first = recordings[0]
    other = next((each for each in recordings if each.source != first.source), None)
    if other is not None:
        lacking, named = (first, other) if first.source.is_inferred else (other, first)
        raise TraceFormatError(
            str(lacking.path),
            "",
            f"it has no ProfilerStep#N annotation; its steps are {lacking.source.description},"
            f" but those of {named.path.name} are {named.source.description}",
            "profile all ranks in the same way, and call prof.step() after every step",
        )
    if not first.source.is_inferred or len(first.steps) == 1:
        return recordings
    starts = {
        each.rank: [step.window.start_ns for step in each.steps.values()] for each in recordings
    }
    usual = starts[first.rank]
    period = (usual[-1] - usual[0]) / (len(usual) - 1)
    ahead = {rank: round((own[0] - usual[0]) / period) for rank, own in starts.items()}
    # Without any common step, the clocks are too far apart to tell the steps by.
    if any(abs(steps) >= len(usual) for steps in ahead.values()):
        return recordings
    earliest = min(ahead.values())
    return tuple(each.renumber(ahead[each.rank] - earliest) for each in recordings)
