"""Interpretation of a rank's torch.profiler trace: the phases of each step.

The phases are those of Laggard's own tracing. On the host, a phase is that of the outermost
operations of the training thread. On a device, it is that of the calls that launched the kernels,
but the times are those of the kernels, since a host runs ahead of its device. Names determine the
phase: `ProfilerStep#N` is a step, `enumerate(DataLoader)` is fetch,
`autograd::engine::evaluate_function` is the backward pass on any thread, and `Optimizer.` is the
optimizer. Annotations named like a phase (`record_function("forward")`) have that phase. Other
operations before a backward pass are forward; before the module's own `.forward` they are
preparation. After the last backward pass they belong to the optimizer. `c10d::` launches
collectives, whose times are those of `gloo:` operations and of NCCL's kernels.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from laggard.analysis.formats.import_run.imported_run import RankStep
from laggard.analysis.formats.import_run.main_lane import (
    BusyTimes,
    TraceSpan,
    build_main_lane,
    serialize_spans,
    split_exposed,
    subtract_spans,
)
from laggard.analysis.formats.kineto.trace_file import CATEGORIES, ProfilerEvents, RankTrace
from laggard.analysis.tables.columns import BoolArray, IntArray
from laggard.core.errors import TraceFormatError
from laggard.core.span_schema import Flag, Lane, Phase

_STEP = re.compile(r"^ProfilerStep#(\d{1,9})$")
_BACKWARD = "autograd::engine::evaluate_function"
_LAUNCH = "c10d::"
_GLOO = "gloo:"
_REDUCER = "torch.distributed.ddp.reducer::"
_NOT_WORK = re.compile(r"^(c10d::|gloo:|nccl:|ProfilerStep#)")
_NCCL_KERNEL = re.compile(r"^nccl(Dev)?Kernel", re.IGNORECASE)
_FETCH = "enumerate(DataLoader)"
_OPTIMIZER = "Optimizer."
_MODULE = ".forward"
_PHASE_BY_ANNOTATION = {phase.value: phase for phase in Phase} | {
    "data": Phase.FETCH,
    "data_loading": Phase.FETCH,
    "dataloader": Phase.FETCH,
    "optimizer_step": Phase.OPTIMIZER,
    "optim": Phase.OPTIMIZER,
}
_DEVICE = tuple(CATEGORIES.index(name) for name in ("kernel", "gpu_memcpy", "gpu_memset"))
_CALLS = tuple(CATEGORIES.index(name) for name in ("cuda_runtime", "cuda_driver"))
_HOST_OP, _ANNOTATION = CATEGORIES.index("cpu_op"), CATEGORIES.index("user_annotation")


@dataclass(frozen=True)
class StepWindow:
    """Step as the profiler's annotation delimits it."""

    step: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class StepTrace:
    """Work of one rank in one step, and its collectives in the order of their launches.

    Attributes:
        window: step that the profiler recorded.
        work: phases of the rank's work.
        collectives: collectives from launch (or arrival) to end.
        busy: times at which the rank worked on anything but collectives.
        backward: start and end of each backward pass.
        resumes: time after each backward pass at which the training thread continued; collectives
            launched in the pass were over, even if another thread recorded their end later.
        last_ns: time by which all collectives were over.
    """

    window: StepWindow
    work: tuple[TraceSpan, ...]
    collectives: tuple[TraceSpan, ...]
    busy: BusyTimes
    backward: tuple[tuple[int, int], ...]
    resumes: tuple[int, ...]
    last_ns: int

    def find_backward_pass(self, span: TraceSpan) -> int | None:
        """Return the index of the backward pass in which a collective was launched, or None."""
        return next(
            (n for n, (start, end) in enumerate(self.backward) if start <= span.start_ns <= end),
            None,
        )

    def latest_end_ns(self, span: TraceSpan) -> int:
        """Return the time from which a collective can no longer have blocked the rank."""
        place = self.find_backward_pass(span)
        return self.last_ns if place is None else self.resumes[place]


def read_steps(trace: RankTrace) -> tuple[StepTrace, ...]:
    """Return every step of a rank.

    Raises:
        TraceFormatError: the trace has no step, or two steps with the same number.
    """
    events, thread = trace.events, _find_training_thread(trace)
    # A trace with any device event is read by its kernels; the host only launches them.
    on_device = bool(np.isin(events.category, _DEVICE).any())
    return tuple(
        _build_device_step(events, window, thread)
        if on_device
        else _build_host_step(events, window, thread)
        for window in _read_step_windows(trace)
    )


def to_rank_step(trace: StepTrace, rank: int) -> RankStep:
    """Convert one step of one rank to spans.

    The rank waits at the end of a backward pass for all collectives launched in it. They form one
    synchronization, numbered by launch, and each keeps its times on a lane of its own. Every other
    collective is a synchronization by itself.
    """
    waits: list[TraceSpan] = []
    background: list[TraceSpan] = []
    for group, together in enumerate(_group_collectives(trace)):
        numbered = [replace(span, group=group) for span in together]
        # The rank cannot wait before the last launch, nor after the training thread has continued.
        last, over_ns = numbered[-1].start_ns, max(span.end_ns for span in numbered)
        end_ns = max(min(over_ns, trace.latest_end_ns(numbered[-1])), last)
        whole = replace(
            numbered[-1], start_ns=last, end_ns=end_ns, bytes=sum(span.bytes for span in numbered)
        )
        exposed, *hidden = split_exposed(whole, trace.busy)
        waits.append(exposed)
        if len(numbered) > 1 or hidden:
            background += [replace(span, lane=Lane.BUCKETS, flags=Flag.ASYNC) for span in numbered]
    main = build_main_lane(trace.work, waits)
    ends = [span.end_ns for span in main]
    return RankStep(
        trace.window.step,
        rank,
        min([trace.window.start_ns, *(span.start_ns for span in main)]),
        max([trace.window.end_ns, *ends]),
        (*main, *background),
    )


def _group_collectives(trace: StepTrace) -> tuple[tuple[TraceSpan, ...], ...]:
    groups: list[list[TraceSpan]] = []
    inside: int | None = None
    for span in trace.collectives:
        place = trace.find_backward_pass(span)
        if place is not None and place == inside:
            groups[-1].append(span)
        else:
            groups.append([span])
        inside = place
    return tuple(tuple(group) for group in groups)


def _find_training_thread(trace: RankTrace) -> int:
    steps = trace.events.where(_is_step_annotation(trace.events))
    if not len(steps):
        raise TraceFormatError(
            str(trace.path),
            "",
            "it has no ProfilerStep#N annotation, so its steps cannot be identified",
            "profile with schedule=torch.profiler.schedule(wait=1, warmup=1, active=50, repeat=1),"
            " and call prof.step() after every step",
        )
    return int(steps.thread[0])


def _is_step_annotation(events: ProfilerEvents) -> BoolArray:
    steps: BoolArray = np.char.startswith(events.name, "ProfilerStep#") & (
        events.category == _ANNOTATION
    )
    return steps


def _read_step_windows(trace: RankTrace) -> tuple[StepWindow, ...]:
    found = trace.events.where(_is_step_annotation(trace.events))
    windows: dict[int, StepWindow] = {}
    for name, start, end in zip(
        found.name.tolist(), found.start_ns.tolist(), found.end_ns.tolist(), strict=True
    ):
        number = _STEP.match(name)
        step = int(number[1]) if number else -1
        if step < 0 or step in windows:
            problem = "occurs twice" if step in windows else "has no number of at most nine digits"
            raise TraceFormatError(
                str(trace.path), name, problem, "give the trace of one profiling cycle"
            )
        windows[step] = StepWindow(step, start, end)
    return tuple(windows[step] for step in sorted(windows))


def _build_host_step(events: ProfilerEvents, window: StepWindow, thread: int) -> StepTrace:
    inside = events.where(_is_in_window(events, window))
    host = inside.where(np.isin(inside.category, (_HOST_OP, _ANNOTATION)))
    launches = host.where(np.char.startswith(host.name, _LAUNCH))
    collectives = _match_gloo_collectives(host, launches)
    calls = _select_work(host, launches)
    busy = BusyTimes.from_intervals(calls.start_ns, calls.end_ns)
    backward = _find_backward_passes(host)
    resumes = _find_resume_times(host, thread, backward, window)
    return StepTrace(
        window,
        _classify_host_work(host, thread),
        collectives,
        busy,
        backward,
        resumes,
        window.end_ns,
    )


def _is_in_window(events: ProfilerEvents, window: StepWindow) -> BoolArray:
    within: BoolArray = (events.start_ns >= window.start_ns) & (events.start_ns < window.end_ns)
    return within


def _select_work(host: ProfilerEvents, launches: ProfilerEvents) -> ProfilerEvents:
    """Return operations that are work; those that enclose a launch may have waited and are not."""
    work = host.where(
        (host.category == _HOST_OP)
        & np.array([not _NOT_WORK.match(name) for name in host.name], dtype=np.bool_)
    )
    # An operation encloses a launch if the number of launches before its end exceeds that before
    # its start.
    starts = np.sort(launches.start_ns)
    holds = np.searchsorted(starts, work.end_ns) > np.searchsorted(starts, work.start_ns)
    return work.where(~holds)


def _match_gloo_collectives(
    host: ProfilerEvents, launches: ProfilerEvents
) -> tuple[TraceSpan, ...]:
    """Return the collectives in the order of their launches, from launch to end.

    gloo runs collectives in threads of its own, which may begin two of them in another order than
    that of their launches.
    """
    waiting = [
        (_normalize_collective_name(name), start, elements)
        for name, start, elements in zip(
            launches.name.tolist(),
            launches.start_ns.tolist(),
            launches.elements.tolist(),
            strict=True,
        )
    ]
    ran = host.where(np.char.startswith(host.name, _GLOO))
    spans = []
    for name, start, end, elements, size in zip(
        ran.name.tolist(),
        ran.start_ns.tolist(),
        ran.end_ns.tolist(),
        ran.elements.tolist(),
        ran.bytes.tolist(),
        strict=True,
    ):
        own = [
            launch
            for launch in waiting
            if launch[0] == _normalize_collective_name(name) and launch[1] <= start
        ]
        # Among several launches of one kind, the one with the same size is the best match.
        launch = next((launch for launch in own if launch[2] == elements), own[0] if own else None)
        if launch is not None:
            waiting.remove(launch)
        spans.append(TraceSpan(Phase.COMM, start if launch is None else launch[1], end, bytes=size))
    return tuple(sorted(spans, key=lambda span: (span.start_ns, span.end_ns)))


def _normalize_collective_name(name: str) -> str:
    """Return the common part of `c10d::allreduce_` and `gloo:all_reduce`: `allreduce`."""
    return name.rsplit(":", 1)[-1].replace("_", "").lower()


def _find_backward_passes(host: ProfilerEvents) -> tuple[tuple[int, int], ...]:
    """Return the start and end of each backward pass, with DDP's work on reduced gradients.

    A pass lasts from its first operation to its last, as long as no other operation is in between.
    """
    inside, reducer = (
        np.char.startswith(host.name, _BACKWARD),
        np.char.startswith(host.name, _REDUCER),
    )
    passes: list[tuple[int, int]] = []
    others = host.where(~inside & ~reducer & (host.category == _HOST_OP))
    rows, ends = host.where(inside | reducer), reducer[inside | reducer]
    for start, end, goes_on in zip(
        rows.start_ns.tolist(), rows.end_ns.tolist(), ends.tolist(), strict=True
    ):
        if passes and (
            goes_on
            or start <= passes[-1][1]
            or not _has_event_between(others, passes[-1][1], start)
        ):
            passes[-1] = (passes[-1][0], max(end, passes[-1][1]))
        elif not goes_on:
            passes.append((start, end))
    return tuple(passes)


def _find_resume_times(
    host: ProfilerEvents, thread: int, passes: Sequence[tuple[int, int]], window: StepWindow
) -> tuple[int, ...]:
    """Return the time at which the training thread continued after the last gradient of each pass.

    It is the end of the window if the thread did not continue in it.
    """
    gradients = host.where(np.char.startswith(host.name, _BACKWARD))
    own = host.start_ns[(host.thread == thread) & ~_is_step_annotation(host)]
    resumes = []
    for start, end in passes:
        inside = gradients.end_ns[(gradients.start_ns >= start) & (gradients.end_ns <= end)]
        after = own[own >= inside.max(initial=start)]
        resumes.append(int(after.min(initial=window.end_ns)))
    return tuple(resumes)


def _has_event_between(events: ProfilerEvents, start_ns: int, end_ns: int) -> bool:
    return bool(((events.start_ns >= start_ns) & (events.end_ns <= end_ns)).any())


def _classify_host_work(host: ProfilerEvents, thread: int) -> tuple[TraceSpan, ...]:
    """Return the phases of the training thread, and of autograd's thread in backward passes."""
    passes = _find_backward_passes(host)
    outer = _select_outermost(host.where((host.thread == thread) & ~_is_step_annotation(host)))
    modules = [start for name, start in _find_names_ending_in(outer, _MODULE)]
    optimizers = [
        start
        for name, start in zip(outer.name.tolist(), outer.start_ns.tolist(), strict=True)
        if name.startswith(_OPTIMIZER)
    ]
    marks = _StepMarkers(passes, tuple(modules), tuple(optimizers))
    named = [
        (phase, start, end)
        for name, start, end in zip(
            outer.name.tolist(), outer.start_ns.tolist(), outer.end_ns.tolist(), strict=True
        )
        if (phase := _classify_phase(name, start, marks)) is not None
    ]
    named += [(Phase.BACKWARD, start, end) for start, end in passes]
    return _merge_adjacent(sorted(named, key=lambda item: (item[1], item[2])))


@dataclass(frozen=True)
class _StepMarkers:
    """Times of the backward passes of a step, and starts of modules' forwards and of optimizers."""

    backwards: tuple[tuple[int, int], ...]
    modules: tuple[int, ...]
    optimizers: tuple[int, ...]

    def in_backward(self, moment_ns: int) -> bool:
        """Return True if a backward pass was in progress."""
        return any(start <= moment_ns <= end for start, end in self.backwards)


def _find_names_ending_in(events: ProfilerEvents, ending: str) -> list[tuple[str, int]]:
    return [
        (name, start)
        for name, start in zip(events.name.tolist(), events.start_ns.tolist(), strict=True)
        if name.endswith(ending)
    ]


def _classify_phase(name: str, start_ns: int, marks: _StepMarkers) -> Phase | None:
    """Return the phase of an outermost operation, or None if it indicates none."""
    if (
        _NOT_WORK.match(name)
        or name.startswith((_BACKWARD, _REDUCER))
        or marks.in_backward(start_ns)
    ):
        return None
    if name.lower().strip("# ") in _PHASE_BY_ANNOTATION:
        return _PHASE_BY_ANNOTATION[name.lower().strip("# ")]
    if name.startswith(_FETCH):
        return Phase.FETCH
    if name.startswith(_OPTIMIZER):
        return Phase.OPTIMIZER
    return _classify_by_position(name, start_ns, marks)


def _classify_by_position(name: str, start_ns: int, marks: _StepMarkers) -> Phase:
    backward = next((at for at, _ in marks.backwards if at > start_ns), None)
    if backward is None:
        if not marks.backwards:
            return Phase.FORWARD
        return Phase.OPTIMIZER if any(at > start_ns for at in marks.optimizers) else Phase.OTHER
    module_follows = any(start_ns < at < backward for at in marks.modules)
    return Phase.PREP if module_follows and not name.endswith(_MODULE) else Phase.FORWARD


def _select_outermost(events: ProfilerEvents) -> ProfilerEvents:
    """Return the events that no other event encloses, in order of their starts."""
    if not len(events):
        return events
    # Events are sorted by start, longer ones first: an event is enclosed if any earlier one ends
    # after its start.
    before = np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(events.end_ns)[:-1]])
    return events.where(events.start_ns >= before)


def _merge_adjacent(named: Sequence[tuple[Phase, int, int]]) -> tuple[TraceSpan, ...]:
    """Merge consecutive operations of one phase, including the time between them."""
    spans: list[TraceSpan] = []
    for phase, start, end in named:
        if spans and spans[-1].phase is phase:
            spans[-1] = replace(spans[-1], end_ns=max(spans[-1].end_ns, end))
        else:
            spans.append(TraceSpan(phase, start, end))
    return tuple(spans)


def _build_device_step(events: ProfilerEvents, window: StepWindow, thread: int) -> StepTrace:
    """Return a step whose work is that of the kernels launched in its window.

    The host's fetches count while the device was idle. Collectives are NCCL's kernels, and gloo's
    operations, which run on the host.
    """
    host = events.where(
        _is_in_window(events, window) & np.isin(events.category, (_HOST_OP, _ANNOTATION))
    )
    work = _classify_host_work(host, thread)
    device, launched = _select_launched(events, window)
    communicates = np.array(
        [bool(_NCCL_KERNEL.match(name)) for name in device.name], dtype=np.bool_
    )
    kernels, at = device.where(~communicates), launched[~communicates]
    named = [
        (_classify_kernel(name, moment, work), start, end)
        for name, moment, start, end in zip(
            kernels.name.tolist(),
            at.tolist(),
            kernels.start_ns.tolist(),
            kernels.end_ns.tolist(),
            strict=True,
        )
    ]
    running = serialize_spans(_merge_adjacent(named))
    fetching = serialize_spans(span for span in work if span.phase is Phase.FETCH)
    reduced = tuple(
        TraceSpan(Phase.COMM, start, end, bytes=size)
        for start, end, size in zip(
            device.start_ns[communicates].tolist(),
            device.end_ns[communicates].tolist(),
            device.bytes[communicates].tolist(),
            strict=True,
        )
    )
    gloo = _match_gloo_collectives(host, host.where(np.char.startswith(host.name, _LAUNCH)))
    collectives = tuple(sorted((*reduced, *gloo), key=lambda span: (span.start_ns, span.end_ns)))
    backward = tuple(
        (span.start_ns, span.end_ns) for span in running if span.phase is Phase.BACKWARD
    )
    idle = tuple(span for span in subtract_spans(fetching, running) if span.end_ns > span.start_ns)
    whole = _find_device_window(window, device)
    ends = BusyTimes.from_intervals(kernels.start_ns, kernels.end_ns)
    over_ns = max([whole.end_ns, *(span.end_ns for span in collectives)])
    return StepTrace(
        whole, (*running, *idle), collectives, ends, backward, (over_ns,) * len(backward), over_ns
    )


def _find_device_window(window: StepWindow, device: ProfilerEvents) -> StepWindow:
    """Return the window from the first kernel of a step to the last."""
    if not len(device):
        return window
    return StepWindow(window.step, int(device.start_ns.min()), int(device.end_ns.max()))


def _select_launched(events: ProfilerEvents, window: StepWindow) -> tuple[ProfilerEvents, IntArray]:
    """Return the device events of the calls in a window, and the time of each call, [N]."""
    calls = events.where(
        _is_in_window(events, window) & np.isin(events.category, _CALLS) & (events.correlation >= 0)
    )
    at = dict(zip(calls.correlation.tolist(), calls.start_ns.tolist(), strict=True))
    device = events.where(np.isin(events.category, _DEVICE))
    own = np.array([number in at for number in device.correlation.tolist()], dtype=np.bool_)
    device = device.where(own)
    return device, np.array([at[number] for number in device.correlation.tolist()], dtype=np.int64)


def _classify_kernel(name: str, called_ns: int, work: Sequence[TraceSpan]) -> Phase:
    if name.startswith("Memcpy HtoD"):
        return Phase.H2D
    inside = next(
        (span.phase for span in work if span.start_ns <= called_ns <= span.end_ns), Phase.OTHER
    )
    # Kernels launched while the host fetches prepare a batch on the device.
    return Phase.PREP if inside is Phase.FETCH else inside
