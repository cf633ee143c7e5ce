"""Steps of one rank's trace: its `ProfilerStep#N` annotations, or else what the rank repeats.

Inference servers and profilers that are attached from outside record no steps. A step ends with the
optimizer. Without an optimizer, it begins with the outermost operation that is repeated most
regularly. If nothing is repeated, the whole trace is one step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from laggard.analysis.formats.kineto.step_phases import (
    ANNOTATION,
    BACKWARD_PREFIX,
    NOT_WORK,
    OPTIMIZER_STEP_PREFIX,
    is_step_annotation,
    select_host_events,
    select_outermost,
)
from laggard.analysis.formats.kineto.step_trace import StepWindow
from laggard.analysis.formats.kineto.trace_file import ProfilerEvents, RankTrace
from laggard.analysis.tables.columns import BoolArray, IntArray
from laggard.core.errors import TraceFormatError

_STEP = re.compile(r"^ProfilerStep#(\d{1,9})$")
_DIGITS = re.compile(r"\d+")
_FOLLOWS = re.compile(rf"{re.escape(BACKWARD_PREFIX)}|{NOT_WORK.pattern}")
_MIN_REPETITIONS = 3
# Shares of the usual period: largest usual deviation, and largest deviation of nearly all periods.
_MAX_DEVIATION, _MAX_OUTLIER = 0.1, 0.5
_MIN_REGULAR = 0.9
_MIN_COVERED = 0.5
# Shortest first step, relative to the usual one, that was recorded from its beginning.
_WHOLE_STEP = 0.8


@dataclass(frozen=True)
class StepSource:
    """Origin of the steps of a trace.

    Attributes:
        kind: annotations of the profiler, ends of the optimizer, starts of a repeated operation,
            or the whole trace.
        name: repeated operation, with `#` in place of numbers; empty for the other kinds.
        is_annotation: whether the repeated operation is an annotation that encloses its step.
    """

    kind: Literal["annotation", "optimizer", "repetition", "whole"]
    name: str = ""
    is_annotation: bool = False

    @property
    def is_inferred(self) -> bool:
        """Return whether the profiler did not record the steps."""
        return self.kind != "annotation"

    @property
    def description(self) -> str:
        """Return what the steps are, as the end of a sentence."""
        return {
            "annotation": "its annotations ProfilerStep#N",
            "optimizer": "the times between the ends of its optimizer steps",
            "repetition": f"the times between the starts of {self.name}",
            "whole": "one, the whole trace",
        }[self.kind]

    def encloses_step(self, events: ProfilerEvents) -> BoolArray:
        """Return a mask of the repeated annotations that enclose their steps."""
        if not self.is_annotation:
            return np.zeros(len(events), dtype=np.bool_)
        same = [_normalize(name) == self.name for name in events.name.tolist()]
        mask: BoolArray = np.array(same, dtype=np.bool_) & (events.category == ANNOTATION)
        return mask


@dataclass(frozen=True)
class StepWindows:
    """Steps of one rank.

    Attributes:
        windows: steps in ascending order; inferred ones are numbered from 0.
        thread: training thread.
        source: origin of the steps.
    """

    windows: tuple[StepWindow, ...]
    thread: int
    source: StepSource

    def encloses_step(self, events: ProfilerEvents) -> BoolArray:
        """Return a mask of the annotations that enclose a whole step."""
        return is_step_annotation(events) | self.source.encloses_step(events)


def find_step_windows(trace: RankTrace) -> StepWindows:
    """Return the steps of a rank.

    Raises:
        TraceFormatError: the trace has no operation, or two steps with the same number.
    """
    found = trace.events.where(is_step_annotation(trace.events))
    if len(found):
        windows = _read_annotated_steps(trace, found)
        return StepWindows(windows, int(found.thread[0]), StepSource("annotation"))
    inferred = _infer_steps(trace.events)
    if inferred is None:
        raise TraceFormatError(
            str(trace.path),
            "",
            "it has no ProfilerStep#N annotation and no operation of the host, so its steps cannot"
            " be identified",
            "profile with schedule=torch.profiler.schedule(wait=1, warmup=1, active=50, repeat=1),"
            " and call prof.step() after every step",
        )
    return inferred


def _read_annotated_steps(trace: RankTrace, found: ProfilerEvents) -> tuple[StepWindow, ...]:
    windows: dict[int, StepWindow] = {}
    threads: dict[int, int] = {}
    for name, thread, start, end in zip(
        found.name.tolist(),
        found.thread.tolist(),
        found.start_ns.tolist(),
        found.end_ns.tolist(),
        strict=True,
    ):
        number = _STEP.match(name)
        step = int(number[1]) if number else -1
        if threads.setdefault(step, thread) != thread:
            raise TraceFormatError(
                str(trace.path),
                name,
                "occurs in several processes or threads, as if several ranks were in one file",
                "give the files of the ranks as the profiler exports them, one for each rank",
            )
        if step < 0 or step in windows:
            problem = "occurs twice" if step in windows else "has no number of at most nine digits"
            raise TraceFormatError(
                str(trace.path), name, problem, "give the trace of one profiling cycle"
            )
        windows[step] = StepWindow(step, start, end)
    return tuple(windows[step] for step in sorted(windows))


def _infer_steps(events: ProfilerEvents) -> StepWindows | None:
    """Return the steps of a rank that recorded none; None if the host recorded no operation.

    Args:
        events: all events of the rank.
    """
    host = select_host_events(events)
    if not len(host):
        return None
    optimizer = np.char.startswith(host.name, OPTIMIZER_STEP_PREFIX)
    if optimizer.any():
        thread = int(host.thread[optimizer][0])
        windows = _split_at_optimizer(host, host.where(optimizer & (host.thread == thread)))
        return StepWindows(windows, thread, StepSource("optimizer"))
    # The backward pass and gloo have threads of their own, which only follow the training thread.
    leads = np.array([not _FOLLOWS.match(name) for name in host.name.tolist()], dtype=np.bool_)
    thread = _find_busiest_thread(host.where(leads) if leads.any() else host)
    outer = select_outermost(host.where(leads & (host.thread == thread)))
    return _split_at_repetition(host, outer, thread) or StepWindows(
        _to_windows([int(host.start_ns.min()), _find_last_end(host)]), thread, StepSource("whole")
    )


def _find_last_end(host: ProfilerEvents) -> int:
    # Events that begin at the end of a window are outside it.
    return max(int(host.end_ns.max()), int(host.start_ns.max()) + 1)


def _to_windows(bounds_ns: Sequence[int]) -> tuple[StepWindow, ...]:
    return tuple(StepWindow(n, *bounds) for n, bounds in enumerate(pairwise(bounds_ns)))


def _find_busiest_thread(host: ProfilerEvents) -> int:
    threads = np.unique(host.thread).tolist()
    busy = {}
    for thread in threads:
        outer = select_outermost(host.where(host.thread == thread))
        busy[thread] = int((outer.end_ns - outer.start_ns).sum())
    return int(max(threads, key=lambda thread: busy[thread]))


def _split_at_optimizer(host: ProfilerEvents, steps: ProfilerEvents) -> tuple[StepWindow, ...]:
    """Return windows that end with the optimizer; several optimizers may belong to one step."""
    backward = np.sort(host.start_ns[np.char.startswith(host.name, BACKWARD_PREFIX)])
    before = np.searchsorted(backward, steps.start_ns)
    # An optimizer's end is that of a step if a backward pass follows before the next optimizer.
    last = np.append(before[1:] > before[:-1], True) if len(backward) else np.ones(len(steps), bool)
    ends: IntArray = np.maximum.accumulate(steps.end_ns)[last]
    bounds = [int(host.start_ns.min()), *ends.tolist()]
    lengths = np.diff(bounds)
    is_partial = len(lengths) > 2 and lengths[0] < _WHOLE_STEP * np.median(lengths[1:])
    return _to_windows(bounds[1:] if is_partial else bounds)


def _split_at_repetition(
    host: ProfilerEvents, outer: ProfilerEvents, thread: int
) -> StepWindows | None:
    names = np.array([_normalize(name) for name in outer.name.tolist()], dtype=np.str_)
    span_ns = _find_last_end(host) - int(host.start_ns.min())
    best, longest = "", 0
    for name in np.unique(names).tolist():
        own = outer.where(names == name)
        total = int((own.end_ns - own.start_ns).sum())
        if total > longest and _is_regular(own.start_ns, span_ns):
            best, longest = name, total
    if not best:
        return None
    own = outer.where(names == best)
    starts = own.start_ns.tolist()
    period = int(np.median(np.diff(own.start_ns)))
    end_ns = min(_find_last_end(host), max(starts[-1] + period, int(own.end_ns[-1])))
    encloses = bool((own.category == ANNOTATION).all()) and 2 * longest > period * len(own)
    windows = _to_windows([*starts, max(end_ns, starts[-1] + 1)])
    return StepWindows(windows, thread, StepSource("repetition", best, is_annotation=encloses))


def _normalize(name: str) -> str:
    return _DIGITS.sub("#", name)


def _is_regular(starts: IntArray, span_ns: int) -> bool:
    """Return whether an operation is repeated regularly throughout the trace."""
    if len(starts) < _MIN_REPETITIONS:
        return False
    periods = np.diff(starts)
    usual = float(np.median(periods))
    deviation = np.abs(periods - usual)
    return bool(
        np.median(deviation) <= _MAX_DEVIATION * usual
        and (deviation <= _MAX_OUTLIER * usual).mean() >= _MIN_REGULAR
        and usual * len(starts) >= _MIN_COVERED * span_ns
    )
