"""Phases of the operations of a rank's training thread.

The phases are those of Laggard's own tracing. On the host, a phase is that of the outermost
operations of the training thread. Names determine the phase: `ProfilerStep#N` is a step,
`enumerate(DataLoader)` is fetch, `autograd::engine::evaluate_function` is the backward pass on any
thread, and `Optimizer.` is the optimizer. Annotations named like a phase
(`record_function("forward")`) have that phase. Other operations before a backward pass are forward;
before the module's own `.forward` they are preparation. After the last backward pass they belong to
the optimizer. Garbage collection is `other`, also amid a phase.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laggard.analysis.formats.import_run.main_lane import (
    TraceSpan,
    serialize_spans,
    subtract_spans,
)
from laggard.analysis.formats.kineto.categories import CATEGORIES, GARBAGE_COLLECTION
from laggard.analysis.formats.kineto.event_table import ProfilerEvents
from laggard.analysis.tables.columns import BoolArray
from laggard.core.span_schema import Phase

HOST_OPERATION, ANNOTATION = CATEGORIES.index("cpu_op"), CATEGORIES.index("user_annotation")
NOT_WORK = re.compile(r"^(c10d::|gloo:|nccl:|record_param_comms|ProfilerStep#)")
"""Names of operations that communicate or enclose a step."""
MAX_HOST_GAP_NS = 1_000_000
"""Longest time between two operations of one phase on the host that counts as that phase.

Python needs up to a few hundred microseconds between two operations."""
BACKWARD_PREFIX = "autograd::engine::evaluate_function"
_REDUCER = "torch.distributed.ddp.reducer::"
_FETCH = "enumerate(DataLoader)"
_OPTIMIZER = "Optimizer."
OPTIMIZER_STEP_PREFIX = "Optimizer.step"
_MODULE = ".forward"
_PHASE_BY_ANNOTATION = {phase.value: phase for phase in Phase} | {
    "data": Phase.FETCH,
    "data_loading": Phase.FETCH,
    "dataloader": Phase.FETCH,
    "optimizer_step": Phase.OPTIMIZER,
    "optim": Phase.OPTIMIZER,
}


def select_host_events(events: ProfilerEvents) -> ProfilerEvents:
    """Return the operations and annotations of the host."""
    return events.where(np.isin(events.category, (HOST_OPERATION, ANNOTATION)))


def is_step_annotation(events: ProfilerEvents) -> BoolArray:
    """Return a mask of the profiler's own annotations of steps."""
    steps: BoolArray = np.char.startswith(events.name, "ProfilerStep#") & (
        events.category == ANNOTATION
    )
    return steps


def classify_host_work(
    host: ProfilerEvents, thread: int, enclosing: BoolArray, max_gap_ns: float = math.inf
) -> tuple[TraceSpan, ...]:
    """Return the phases of the training thread, and of autograd's thread in backward passes.

    Args:
        host: operations and annotations of the host in one step.
        thread: training thread.
        enclosing: mask of the annotations that enclose a whole step.
        max_gap_ns: longest time between two operations of one phase that belongs to the phase.
    """
    passes = find_backward_passes(host)
    outer = select_outermost(host.where((host.thread == thread) & ~enclosing))
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
    return merge_adjacent(sorted(named, key=lambda item: (item[1], item[2])), max_gap_ns)


def find_garbage_collections(events: ProfilerEvents, thread: int) -> tuple[TraceSpan, ...]:
    """Return the garbage collections of the training thread and of the threads of autograd."""
    trains = np.unique(events.thread[np.char.startswith(events.name, BACKWARD_PREFIX)])
    found = events.where(
        is_garbage_collection(events) & np.isin(events.thread, np.append(trains, thread))
    )
    return serialize_spans(
        TraceSpan(Phase.OTHER, start, end)
        for start, end in zip(found.start_ns.tolist(), found.end_ns.tolist(), strict=True)
    )


def is_garbage_collection(events: ProfilerEvents) -> BoolArray:
    """Return a mask of the garbage collections of Python."""
    return events.name.matches(lambda name: GARBAGE_COLLECTION.match(name) is not None)


def cut_out(work: Sequence[TraceSpan], holes: Sequence[TraceSpan]) -> tuple[TraceSpan, ...]:
    """Return work with other spans in place of its parts; both must be in order."""
    rest = (s for s in subtract_spans(serialize_spans(work), holes) if s.end_ns > s.start_ns)
    return tuple(sorted((*rest, *holes), key=lambda span: (span.start_ns, span.end_ns)))


def find_backward_passes(host: ProfilerEvents) -> tuple[tuple[int, int], ...]:
    """Return the start and end of each backward pass, with DDP's work on reduced gradients.

    A pass lasts from its first operation to its last, as long as no other operation is in between.
    """
    inside, reducer = (
        np.char.startswith(host.name, BACKWARD_PREFIX),
        np.char.startswith(host.name, _REDUCER),
    )
    passes: list[tuple[int, int]] = []
    others = host.where(~inside & ~reducer & (host.category == HOST_OPERATION))
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


def _has_event_between(events: ProfilerEvents, start_ns: int, end_ns: int) -> bool:
    return bool(((events.start_ns >= start_ns) & (events.end_ns <= end_ns)).any())


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
        NOT_WORK.match(name)
        or GARBAGE_COLLECTION.match(name)
        or name.startswith((BACKWARD_PREFIX, _REDUCER))
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


def select_outermost(events: ProfilerEvents) -> ProfilerEvents:
    """Return the events that no other event encloses, in order of their starts."""
    if not len(events):
        return events
    # Events are sorted by start, longer ones first: an event is enclosed if any earlier one ends
    # after its start.
    before = np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(events.end_ns)[:-1]])
    return events.where(events.start_ns >= before)


def merge_adjacent(
    named: Sequence[tuple[Phase, int, int]], max_gap_ns: float
) -> tuple[TraceSpan, ...]:
    """Merge consecutive operations of one phase, including short times between them.

    Args:
        named: phase, start and end of each operation, in order.
        max_gap_ns: longest time between two operations that are merged.
    """
    spans: list[TraceSpan] = []
    for phase, start, end in named:
        if spans and spans[-1].phase is phase and start - spans[-1].end_ns <= max_gap_ns:
            spans[-1] = spans[-1].move(spans[-1].start_ns, max(spans[-1].end_ns, end))
        else:
            spans.append(TraceSpan(phase, start, end))
    return tuple(spans)
