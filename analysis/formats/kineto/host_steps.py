"""Steps of a rank that computes on its host.

`c10d::` launches collectives, whose times are those of `gloo:` operations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from laggard.analysis.formats.import_run.main_lane import BusyTimes, TraceSpan
from laggard.analysis.formats.kineto.collective_names import normalize_collective_name
from laggard.analysis.formats.kineto.process_groups import (
    NO_LABEL,
    ResolvedLabel,
)
from laggard.analysis.formats.kineto.step_phases import (
    BACKWARD_PREFIX,
    HOST_OPERATION,
    MAX_HOST_GAP_NS,
    NOT_WORK,
    classify_host_work,
    cut_out,
    find_backward_passes,
    find_garbage_collections,
    is_garbage_collection,
    select_host_events,
)
from laggard.analysis.formats.kineto.step_trace import (
    MessageEnd,
    RankCollective,
    StepTrace,
    StepWindow,
)
from laggard.analysis.formats.kineto.step_windows import StepWindows
from laggard.analysis.formats.kineto.trace_file import ProfilerEvents
from laggard.analysis.tables.columns import BoolArray

LAUNCH_PREFIX = "c10d::"
"""Prefix of the operations that launch collectives."""
COMMS_PREFIX = "record_param_comms"
"""Prefix of the events that describe a collective, inside the operation that launches it."""
_GLOO = "gloo:"

Labels = Mapping[int, ResolvedLabel]
"""Descriptions of collectives by their number in the trace."""


def build_host_step(
    events: ProfilerEvents, window: StepWindow, steps: StepWindows, labels: Labels
) -> StepTrace:
    """Return a step whose work is that of the host's operations.

    Args:
        events: all events of the rank.
        window: the step.
        steps: all steps of the rank.
        labels: descriptions of the collectives.
    """
    inside = events.started_between(window.start_ns, window.end_ns)
    host = select_host_events(inside)
    launches = host.where(np.char.startswith(host.name, LAUNCH_PREFIX))
    calls = _select_work(host, launches)
    collections = find_garbage_collections(inside, steps.thread)
    enclosing = steps.encloses_step(host)
    # Garbage is also collected amid a backward pass, which the training thread may compute.
    trains = (host.thread == steps.thread) & ~enclosing & ~is_garbage_collection(host)
    backward = find_backward_passes(host)
    work = classify_host_work(host, steps.thread, enclosing, MAX_HOST_GAP_NS)
    return StepTrace(
        window=window,
        work=cut_out(work, collections),
        collectives=match_gloo_collectives(host, labels),
        busy=_build_busy_times(calls, collections),
        backward=backward,
        resumes=_find_resume_times(host, trains, backward, window),
        last_ns=window.end_ns,
        on_device=False,
    )


def _build_busy_times(calls: ProfilerEvents, collections: Sequence[TraceSpan]) -> BusyTimes:
    intervals = np.array(
        [(span.start_ns, span.end_ns) for span in collections], dtype=np.int64
    ).reshape(-1, 2)
    return BusyTimes.from_intervals(
        np.append(calls.start_ns, intervals[:, 0]), np.append(calls.end_ns, intervals[:, 1])
    )


def _select_work(host: ProfilerEvents, launches: ProfilerEvents) -> ProfilerEvents:
    """Return operations that are work; those that enclose a launch may have waited and are not."""
    work = host.where(
        (host.category == HOST_OPERATION)
        & np.array([not NOT_WORK.match(name) for name in host.name], dtype=np.bool_)
    )
    # An operation encloses a launch if the number of launches before its end exceeds that before
    # its start.
    starts = np.sort(launches.start_ns)
    holds = np.searchsorted(starts, work.end_ns) > np.searchsorted(starts, work.start_ns)
    return work.where(~holds)


@dataclass(frozen=True, slots=True)
class _Launch:
    """Launch of a collective by the training thread or autograd's."""

    kind: str
    start_ns: int
    elements: int
    label: int


def match_gloo_collectives(host: ProfilerEvents, labels: Labels) -> tuple[RankCollective, ...]:
    """Return gloo's collectives in the order of their launches, from launch to end.

    gloo runs collectives in threads of its own, which may begin two of them in another order than
    that of their launches.

    Args:
        host: operations and annotations of the host in one step.
        labels: descriptions of the collectives.
    """
    waiting = _list_launches(host)
    ran = host.where(np.char.startswith(host.name, _GLOO))
    found = []
    for name, thread, start, end, elements, size, label in zip(
        ran.name.tolist(),
        ran.thread.tolist(),
        ran.start_ns.tolist(),
        ran.end_ns.tolist(),
        ran.elements.tolist(),
        ran.bytes.tolist(),
        ran.label.tolist(),
        strict=True,
    ):
        kind = normalize_collective_name(name)
        launch = _choose_launch(waiting, kind, start, elements)
        if launch is not None:
            waiting.remove(launch)
        number = label if label >= 0 or launch is None else launch.label
        launched_ns = start if launch is None else launch.start_ns
        described = labels.get(number, NO_LABEL)
        messages = list_messages([ResolvedLabel(described.group, kind, described.peer)])
        found.append(
            RankCollective(kind, launched_ns, end, size, described.group, messages, thread)
        )
    return tuple(sorted(found, key=lambda each: (each.start_ns, each.end_ns)))


def list_messages(labels: Sequence[ResolvedLabel]) -> tuple[MessageEnd, ...]:
    """Return the messages that descriptions mean; empty if one of their peers is unknown."""
    found = [each for each in labels if each.kind in ("send", "recv")]
    if any(each.peer < 0 for each in found):
        return ()
    return tuple(MessageEnd(each.kind == "send", each.peer) for each in found)


def _list_launches(host: ProfilerEvents) -> list[_Launch]:
    launches = host.where(np.char.startswith(host.name, LAUNCH_PREFIX))
    labeled = host.where(np.char.startswith(host.name, COMMS_PREFIX) & (host.label >= 0))
    found = []
    for name, thread, start, end, elements, label in zip(
        launches.name.tolist(),
        launches.thread.tolist(),
        launches.start_ns.tolist(),
        launches.end_ns.tolist(),
        launches.elements.tolist(),
        launches.label.tolist(),
        strict=True,
    ):
        number = label if label >= 0 else _find_label(labeled, thread, start, end)
        found.append(_Launch(normalize_collective_name(name), start, elements, number))
    return found


def _find_label(labeled: ProfilerEvents, thread: int, start_ns: int, end_ns: int) -> int:
    """Return the first description of a collective that a thread recorded in a time, or -1."""
    own = (labeled.thread == thread) & (labeled.start_ns >= start_ns)
    rows = np.flatnonzero(own & (labeled.start_ns <= end_ns))
    return int(labeled.label[rows[0]]) if len(rows) else -1


def _choose_launch(
    waiting: Sequence[_Launch], kind: str, start_ns: int, elements: int
) -> _Launch | None:
    own = [launch for launch in waiting if launch.kind == kind and launch.start_ns <= start_ns]
    # Among several launches of one kind, the one with the same size is the best match.
    same_size = (launch for launch in own if launch.elements == elements)
    return next(same_size, own[0] if own else None)


def _find_resume_times(
    host: ProfilerEvents,
    trains: BoolArray,
    passes: Sequence[tuple[int, int]],
    window: StepWindow,
) -> tuple[int, ...]:
    """Return the time at which the training thread continued after the last gradient of each pass.

    It is the end of the window if the thread did not continue in it.
    """
    gradients = host.where(np.char.startswith(host.name, BACKWARD_PREFIX))
    own = host.start_ns[trains]
    resumes = []
    for start, end in passes:
        inside = gradients.end_ns[(gradients.start_ns >= start) & (gradients.end_ns <= end)]
        after = own[own >= inside.max(initial=start)]
        resumes.append(int(after.min(initial=window.end_ns)))
    return tuple(resumes)
