"""Steps of a rank that computes on a device.

The phase of a kernel is that of the call that launched it, but the times are those of the kernel,
since a host runs ahead of its device. Collectives are NCCL's kernels, and gloo's operations, which
run on the host.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from laggard.analysis.formats.import_run.main_lane import (
    BusyTimes,
    TraceSpan,
    serialize_spans,
    subtract_spans,
)
from laggard.analysis.formats.kineto.collective_names import (
    is_collective_kernel,
    normalize_collective_name,
)
from laggard.analysis.formats.kineto.host_steps import (
    COMMS_PREFIX,
    Labels,
    list_messages,
    match_gloo_collectives,
)
from laggard.analysis.formats.kineto.process_groups import (
    NO_LABEL,
    UNKNOWN_GROUP,
    ResolvedLabel,
)
from laggard.analysis.formats.kineto.step_phases import (
    classify_host_work,
    merge_adjacent,
    select_host_events,
)
from laggard.analysis.formats.kineto.step_trace import RankCollective, StepTrace, StepWindow
from laggard.analysis.formats.kineto.step_windows import StepWindows
from laggard.analysis.formats.kineto.trace_file import CATEGORIES, ProfilerEvents
from laggard.analysis.tables.columns import IntArray
from laggard.core.span_schema import Phase

MAX_DEVICE_GAP_NS = 20_000
"""Longest idle time of the device between two kernels of one phase that counts as that phase.

A longer one means that the host launched the next kernel too late."""
_DEVICE = tuple(CATEGORIES.index(name) for name in ("kernel", "gpu_memcpy", "gpu_memset"))
_CALLS = tuple(CATEGORIES.index(name) for name in ("cuda_runtime", "cuda_driver"))


def has_device_events(events: ProfilerEvents) -> bool:
    """Return whether a rank recorded any event of a device."""
    return bool(np.isin(events.category, _DEVICE).any())


def build_device_step(
    events: ProfilerEvents, window: StepWindow, steps: StepWindows, labels: Labels
) -> StepTrace:
    """Return a step whose work is that of the kernels launched in its window.

    The host's fetches count while the device was idle.

    Args:
        events: all events of the rank.
        window: the step.
        steps: all steps of the rank.
        labels: descriptions of the collectives.
    """
    inside = events.started_between(window.start_ns, window.end_ns)
    host = select_host_events(inside)
    work = classify_host_work(host, steps.thread, steps.encloses_step(host))
    calls = inside.where(np.isin(inside.category, _CALLS) & (inside.correlation >= 0))
    device, launched = events.launched_by(calls)
    communicates = device.name.matches(is_collective_kernel)
    kernels = device.where(~communicates)
    named = _classify_kernels(kernels, launched[~communicates], work)
    # Whole phases, with the idle times of the device in them.
    phases = serialize_spans(merge_adjacent(named, np.inf))
    fetching = serialize_spans(span for span in work if span.phase is Phase.FETCH)
    idle = tuple(span for span in subtract_spans(fetching, phases) if span.end_ns > span.start_ns)
    nccl = device.where(communicates)
    described = _find_labels(host, nccl, launched[communicates], labels)
    exchanged = _find_messages(host, nccl, launched[communicates], labels)
    reduced = _list_nccl_collectives(nccl, described, exchanged)
    collectives = tuple(
        sorted(
            (*reduced, *match_gloo_collectives(host, labels)),
            key=lambda each: (each.start_ns, each.end_ns),
        )
    )
    backward = tuple(
        (span.start_ns, span.end_ns) for span in phases if span.phase is Phase.BACKWARD
    )
    whole = _find_device_window(window, device)
    over_ns = max([whole.end_ns, *(each.end_ns for each in collectives)])
    return StepTrace(
        window=whole,
        work=(*serialize_spans(merge_adjacent(named, MAX_DEVICE_GAP_NS)), *idle),
        collectives=collectives,
        busy=BusyTimes.from_intervals(kernels.start_ns, kernels.end_ns),
        backward=backward,
        resumes=(over_ns,) * len(backward),
        last_ns=over_ns,
        on_device=True,
    )


def _find_device_window(window: StepWindow, device: ProfilerEvents) -> StepWindow:
    """Return the window from the first kernel of a step to the last."""
    if not len(device):
        return window
    return StepWindow(window.step, int(device.start_ns.min()), int(device.end_ns.max()))


def _classify_kernels(
    kernels: ProfilerEvents, launched: IntArray, work: Sequence[TraceSpan]
) -> list[tuple[Phase, int, int]]:
    return [
        (_classify_kernel(name, moment, work), start, end)
        for name, moment, start, end in zip(
            kernels.name.tolist(),
            launched.tolist(),
            kernels.start_ns.tolist(),
            kernels.end_ns.tolist(),
            strict=True,
        )
    ]


def _classify_kernel(name: str, called_ns: int, work: Sequence[TraceSpan]) -> Phase:
    if name.startswith("Memcpy HtoD"):
        return Phase.H2D
    inside = next(
        (span.phase for span in work if span.start_ns <= called_ns <= span.end_ns), Phase.OTHER
    )
    # Kernels launched while the host fetches prepare a batch on the device.
    return Phase.PREP if inside is Phase.FETCH else inside


def _find_labels(
    host: ProfilerEvents, kernels: ProfilerEvents, called: IntArray, labels: Labels
) -> list[ResolvedLabel]:
    """Return the description of each of NCCL's kernels: its own, or that around its call."""
    around = host.where(np.char.startswith(host.name, COMMS_PREFIX) & (host.label >= 0))
    found = []
    for number, called_ns in zip(kernels.label.tolist(), called.tolist(), strict=True):
        own = labels.get(number, NO_LABEL)
        rows = np.flatnonzero((around.start_ns <= called_ns) & (around.end_ns >= called_ns))
        if own.group in (None, UNKNOWN_GROUP) and len(rows):
            own = labels[int(around.label[rows[-1]])]
        found.append(own)
    return found


def _find_messages(
    host: ProfilerEvents, kernels: ProfilerEvents, called: IntArray, labels: Labels
) -> list[tuple[ResolvedLabel, ...]]:
    """Return the descriptions of the messages of each of NCCL's kernels, in order of calls.

    A batch of messages is one kernel. The host describes them before it launches the kernel.
    """
    around = host.where(np.char.startswith(host.name, COMMS_PREFIX) & (host.label >= 0))
    order = np.argsort(around.start_ns, kind="stable").tolist()
    described = [
        (int(around.start_ns[row]), labels[int(around.label[row])])
        for row in order
        if labels[int(around.label[row])].kind in ("send", "recv")
    ]
    found: list[tuple[ResolvedLabel, ...]] = [()] * len(kernels)
    names = [normalize_collective_name(name) for name in kernels.name.tolist()]
    position = 0
    for number in np.argsort(called, kind="stable").tolist():
        own = labels.get(int(kernels.label[number]), NO_LABEL)
        if names[number] != "sendrecv" and own.kind not in ("send", "recv", "coalesced"):
            continue
        first = position
        while position < len(described) and described[position][0] <= int(called[number]):
            position += 1
        found[number] = tuple(label for _, label in described[first:position]) or (own,)
    return found


def _list_nccl_collectives(
    kernels: ProfilerEvents,
    labels: Sequence[ResolvedLabel],
    exchanged: Sequence[tuple[ResolvedLabel, ...]],
) -> tuple[RankCollective, ...]:
    return tuple(
        RankCollective(
            _get_kind(name, label.kind, messages),
            start,
            end,
            size,
            label.group,
            list_messages(messages),
        )
        for name, start, end, size, label, messages in zip(
            kernels.name.tolist(),
            kernels.start_ns.tolist(),
            kernels.end_ns.tolist(),
            kernels.bytes.tolist(),
            labels,
            exchanged,
            strict=True,
        )
    )


def _get_kind(name: str, described: str, messages: Sequence[ResolvedLabel]) -> str:
    """Return the kind of a kernel such as `ncclDevKernel_AllReduce_Sum_f32_RING_LL`.

    NCCL has one kernel for all exchanges between pairs of ranks, also in an all-to-all.
    """
    kind = normalize_collective_name(name)
    if len(messages) > 1:
        return "coalesced"
    return described or kind if kind in ("", "generic", "sendrecv") else kind
