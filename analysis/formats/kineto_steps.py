"""What a rank did in each step of its torch.profiler trace, in the phases that Laggard's own
tracing tells.

On the host a phase is that of the outermost operations of the training thread. Of a device it is
that of the calls that launched its kernels, and the kernels' times count, for a host runs ahead of
its device. Rules, by name: `ProfilerStep#N` is a step; `enumerate(DataLoader)` fetches;
`autograd::engine::evaluate_function` is the backward pass, on whatever thread; `Optimizer.` is the
optimizer; annotations that are named like a phase (`record_function("forward")`) are it; other
operations before a backward pass are forward, and before the module's own `.forward` preparation;
after the last backward pass they are the optimizer's. `c10d::` launches collectives; `gloo:` and
NCCL's kernels are when they ran.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from laggard.analysis.columns import BoolArray, IntArray
from laggard.analysis.formats.imported import RankStep
from laggard.analysis.formats.kineto_file import CATEGORIES, Events, RankTrace
from laggard.analysis.formats.main_lane import Busy, Piece, cut, held_up, in_line, lay_out
from laggard.errors import TraceFormatError
from laggard.span_schema import Flag, Lane, Phase

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
_BY_ANNOTATION = {phase.value: phase for phase in Phase} | {
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
class Window:
    """A step as the profiler's annotation has it."""

    step: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class StepTrace:
    """One step: its work, and its collectives in the order in which they were launched, from launch
    (or arrival) to end.

    `busy` is when the rank worked on anything but collectives, `backward` when its backward passes
    were under way, and `resumes` when after each the training thread went on: collectives that were
    launched in it were over by then, also where another thread was later to say so; all were by
    `last_ns`.
    """

    window: Window
    work: tuple[Piece, ...]
    collectives: tuple[Piece, ...]
    busy: Busy
    backward: tuple[tuple[int, int], ...]
    resumes: tuple[int, ...]
    last_ns: int

    def backward_of(self, piece: Piece) -> int | None:
        """Which backward pass a collective was launched in."""
        return next(
            (n for n, (start, end) in enumerate(self.backward) if start <= piece.start_ns <= end),
            None,
        )

    def over_by(self, piece: Piece) -> int:
        """When a collective cannot have held the rank up any more."""
        place = self.backward_of(piece)
        return self.last_ns if place is None else self.resumes[place]


def steps_of(trace: RankTrace) -> tuple[StepTrace, ...]:
    """Every step of a rank.

    Raises:
        TraceFormatError: there is none, or two have one number.
    """
    events, thread = trace.events, _training_thread(trace)
    on_device = bool(np.isin(events.category, _DEVICE).any())
    return tuple(
        _device_step(events, window, thread) if on_device else _host_step(events, window, thread)
        for window in _windows(trace)
    )


def rank_step(trace: StepTrace, rank: int) -> RankStep:
    """One step of one rank as spans.

    Collectives that were launched in a backward pass are waited for at its end, together: they are
    one meeting, and each has its time on a lane of its own. Every other is a meeting by itself.
    Meetings are numbered in the order of their launches.
    """
    meetings: list[Piece] = []
    beside: list[Piece] = []
    for group, together in enumerate(_meetings(trace)):
        numbered = [replace(piece, group=group) for piece in together]
        last, over_ns = numbered[-1].start_ns, max(piece.end_ns for piece in numbered)
        end_ns = max(min(over_ns, trace.over_by(numbered[-1])), last)
        whole = replace(
            numbered[-1], start_ns=last, end_ns=end_ns, bytes=sum(piece.bytes for piece in numbered)
        )
        exposed, *hidden = held_up(whole, trace.busy)
        meetings.append(exposed)
        if len(numbered) > 1 or hidden:
            beside += [replace(piece, lane=Lane.BUCKETS, flags=Flag.ASYNC) for piece in numbered]
    main = lay_out(trace.work, meetings)
    ends = [piece.end_ns for piece in main]
    return RankStep(
        trace.window.step,
        rank,
        min([trace.window.start_ns, *(piece.start_ns for piece in main)]),
        max([trace.window.end_ns, *ends]),
        (*main, *beside),
    )


def _meetings(trace: StepTrace) -> tuple[tuple[Piece, ...], ...]:
    groups: list[list[Piece]] = []
    inside: int | None = None
    for piece in trace.collectives:
        place = trace.backward_of(piece)
        if place is not None and place == inside:
            groups[-1].append(piece)
        else:
            groups.append([piece])
        inside = place
    return tuple(tuple(group) for group in groups)


def _training_thread(trace: RankTrace) -> int:
    steps = trace.events.where(_named_step(trace.events))
    if not len(steps):
        raise TraceFormatError(
            str(trace.path),
            "",
            "no ProfilerStep#N is in it, so its steps cannot be told",
            "profile with schedule=torch.profiler.schedule(wait=1, warmup=1, active=50, repeat=1),"
            " and call prof.step() after every step",
        )
    return int(steps.thread[0])


def _named_step(events: Events) -> BoolArray:
    steps: BoolArray = np.char.startswith(events.name, "ProfilerStep#") & (
        events.category == _ANNOTATION
    )
    return steps


def _windows(trace: RankTrace) -> tuple[Window, ...]:
    found = trace.events.where(_named_step(trace.events))
    windows: dict[int, Window] = {}
    for name, start, end in zip(
        found.name.tolist(), found.start_ns.tolist(), found.end_ns.tolist(), strict=True
    ):
        number = _STEP.match(name)
        step = int(number[1]) if number else -1
        if step < 0 or step in windows:
            wrong = "is there twice" if step in windows else "has no number of at most nine digits"
            raise TraceFormatError(
                str(trace.path), name, wrong, "give the trace of one training, cycle by cycle"
            )
        windows[step] = Window(step, start, end)
    return tuple(windows[step] for step in sorted(windows))


def _host_step(events: Events, window: Window, thread: int) -> StepTrace:
    inside = events.where(_within(events, window))
    host = inside.where(np.isin(inside.category, (_HOST_OP, _ANNOTATION)))
    launches = host.where(np.char.startswith(host.name, _LAUNCH))
    collectives = _gloo(host, launches)
    calls = _works(host, launches)
    busy = Busy.of(calls.start_ns, calls.end_ns)
    backward = _backward(host)
    resumes = _resumes(host, thread, backward, window)
    return StepTrace(
        window, _host_work(host, thread), collectives, busy, backward, resumes, window.end_ns
    )


def _within(events: Events, window: Window) -> BoolArray:
    within: BoolArray = (events.start_ns >= window.start_ns) & (events.start_ns < window.end_ns)
    return within


def _works(host: Events, launches: Events) -> Events:
    """Operations that are work: no collective, and nothing that a collective was launched in, which
    may have waited for it.
    """
    work = host.where(
        (host.category == _HOST_OP)
        & np.array([not _NOT_WORK.match(name) for name in host.name], dtype=np.bool_)
    )
    starts = np.sort(launches.start_ns)
    holds = np.searchsorted(starts, work.end_ns) > np.searchsorted(starts, work.start_ns)
    return work.where(~holds)


def _gloo(host: Events, launches: Events) -> tuple[Piece, ...]:
    """Collectives in the order of their launches, from launch to end.

    Gloo runs what was launched in threads of its own, which may begin two collectives in another
    order than that of their launches.
    """
    waiting = [
        (_kind(name), start, elements)
        for name, start, elements in zip(
            launches.name.tolist(),
            launches.start_ns.tolist(),
            launches.elements.tolist(),
            strict=True,
        )
    ]
    ran = host.where(np.char.startswith(host.name, _GLOO))
    pieces = []
    for name, start, end, elements, size in zip(
        ran.name.tolist(),
        ran.start_ns.tolist(),
        ran.end_ns.tolist(),
        ran.elements.tolist(),
        ran.bytes.tolist(),
        strict=True,
    ):
        own = [launch for launch in waiting if launch[0] == _kind(name) and launch[1] <= start]
        launch = next((launch for launch in own if launch[2] == elements), own[0] if own else None)
        if launch is not None:
            waiting.remove(launch)
        pieces.append(Piece(Phase.COMM, start if launch is None else launch[1], end, bytes=size))
    return tuple(sorted(pieces, key=lambda piece: (piece.start_ns, piece.end_ns)))


def _kind(name: str) -> str:
    """`allreduce` of `c10d::allreduce_` and of `gloo:all_reduce`."""
    return name.rsplit(":", 1)[-1].replace("_", "").lower()


def _backward(host: Events) -> tuple[tuple[int, int], ...]:
    """When backward passes were under way: from their first operation to their last, as long as
    nothing but theirs came between.

    What DDP's reducer does when a pass is over, handing out what was reduced, is part of it.
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
            goes_on or start <= passes[-1][1] or not _between(others, passes[-1][1], start)
        ):
            passes[-1] = (passes[-1][0], max(end, passes[-1][1]))
        elif not goes_on:
            passes.append((start, end))
    return tuple(passes)


def _resumes(
    host: Events, thread: int, passes: Sequence[tuple[int, int]], window: Window
) -> tuple[int, ...]:
    """When the training thread began something else after the last gradient of each pass; the
    window's end if it did not.
    """
    gradients = host.where(np.char.startswith(host.name, _BACKWARD))
    own = host.start_ns[(host.thread == thread) & ~_named_step(host)]
    resumes = []
    for start, end in passes:
        inside = gradients.end_ns[(gradients.start_ns >= start) & (gradients.end_ns <= end)]
        after = own[own >= inside.max(initial=start)]
        resumes.append(int(after.min(initial=window.end_ns)))
    return tuple(resumes)


def _between(events: Events, start_ns: int, end_ns: int) -> bool:
    return bool(((events.start_ns >= start_ns) & (events.end_ns <= end_ns)).any())


def _host_work(host: Events, thread: int) -> tuple[Piece, ...]:
    """Phases of the training thread (and of autograd's own, where the backward pass ran there)."""
    passes = _backward(host)
    outer = _outermost(host.where((host.thread == thread) & ~_named_step(host)))
    modules = [start for name, start in _named_ends(outer, _MODULE)]
    optimizers = [
        start
        for name, start in zip(outer.name.tolist(), outer.start_ns.tolist(), strict=True)
        if name.startswith(_OPTIMIZER)
    ]
    marks = _Marks(passes, tuple(modules), tuple(optimizers))
    named = [
        (phase, start, end)
        for name, start, end in zip(
            outer.name.tolist(), outer.start_ns.tolist(), outer.end_ns.tolist(), strict=True
        )
        if (phase := _phase(name, start, marks)) is not None
    ]
    named += [(Phase.BACKWARD, start, end) for start, end in passes]
    return _joined(sorted(named, key=lambda item: (item[1], item[2])))


@dataclass(frozen=True)
class _Marks:
    """When, in a step, backward passes were under way, and modules' forwards and optimizers
    began.
    """

    backwards: tuple[tuple[int, int], ...]
    modules: tuple[int, ...]
    optimizers: tuple[int, ...]

    def in_backward(self, moment_ns: int) -> bool:
        """Whether a backward pass was under way."""
        return any(start <= moment_ns <= end for start, end in self.backwards)


def _named_ends(events: Events, ending: str) -> list[tuple[str, int]]:
    return [
        (name, start)
        for name, start in zip(events.name.tolist(), events.start_ns.tolist(), strict=True)
        if name.endswith(ending)
    ]


def _phase(name: str, start_ns: int, marks: _Marks) -> Phase | None:
    """The phase of an outermost operation; None for what tells none."""
    if (
        _NOT_WORK.match(name)
        or name.startswith((_BACKWARD, _REDUCER))
        or marks.in_backward(start_ns)
    ):
        return None
    if name.lower().strip("# ") in _BY_ANNOTATION:
        return _BY_ANNOTATION[name.lower().strip("# ")]
    if name.startswith(_FETCH):
        return Phase.FETCH
    if name.startswith(_OPTIMIZER):
        return Phase.OPTIMIZER
    return _by_place(name, start_ns, marks)


def _by_place(name: str, start_ns: int, marks: _Marks) -> Phase:
    backward = next((at for at, _ in marks.backwards if at > start_ns), None)
    if backward is None:
        if not marks.backwards:
            return Phase.FORWARD
        return Phase.OPTIMIZER if any(at > start_ns for at in marks.optimizers) else Phase.OTHER
    module_follows = any(start_ns < at < backward for at in marks.modules)
    return Phase.PREP if module_follows and not name.endswith(_MODULE) else Phase.FORWARD


def _outermost(events: Events) -> Events:
    """Those that no other encloses, in order of their begin."""
    if not len(events):
        return events
    before = np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(events.end_ns)[:-1]])
    return events.where(events.start_ns >= before)


def _joined(named: Sequence[tuple[Phase, int, int]]) -> tuple[Piece, ...]:
    """One piece per run of one phase: what is between two operations of a phase belongs to it."""
    pieces: list[Piece] = []
    for phase, start, end in named:
        if pieces and pieces[-1].phase is phase:
            pieces[-1] = replace(pieces[-1], end_ns=max(pieces[-1].end_ns, end))
        else:
            pieces.append(Piece(phase, start, end))
    return tuple(pieces)


def _device_step(events: Events, window: Window, thread: int) -> StepTrace:
    """A step whose work is that of kernels that were launched in the window; the host's fetching
    counts where the device was idle.

    Collectives are NCCL's kernels, and gloo's, which run on the host.
    """
    host = events.where(_within(events, window) & np.isin(events.category, (_HOST_OP, _ANNOTATION)))
    work = _host_work(host, thread)
    device, launched = _launched(events, window)
    talks = np.array([bool(_NCCL_KERNEL.match(name)) for name in device.name], dtype=np.bool_)
    kernels, at = device.where(~talks), launched[~talks]
    named = [
        (_kernel_phase(name, moment, work), start, end)
        for name, moment, start, end in zip(
            kernels.name.tolist(),
            at.tolist(),
            kernels.start_ns.tolist(),
            kernels.end_ns.tolist(),
            strict=True,
        )
    ]
    running = in_line(_joined(named))
    fetching = in_line(piece for piece in work if piece.phase is Phase.FETCH)
    reduced = tuple(
        Piece(Phase.COMM, start, end, bytes=size)
        for start, end, size in zip(
            device.start_ns[talks].tolist(),
            device.end_ns[talks].tolist(),
            device.bytes[talks].tolist(),
            strict=True,
        )
    )
    gloo = _gloo(host, host.where(np.char.startswith(host.name, _LAUNCH)))
    collectives = tuple(sorted((*reduced, *gloo), key=lambda piece: (piece.start_ns, piece.end_ns)))
    backward = tuple(
        (piece.start_ns, piece.end_ns) for piece in running if piece.phase is Phase.BACKWARD
    )
    idle = tuple(piece for piece in cut(fetching, running) if piece.end_ns > piece.start_ns)
    whole = _device_window(window, device)
    ends = Busy.of(kernels.start_ns, kernels.end_ns)
    over_ns = max([whole.end_ns, *(piece.end_ns for piece in collectives)])
    return StepTrace(
        whole, (*running, *idle), collectives, ends, backward, (over_ns,) * len(backward), over_ns
    )


def _device_window(window: Window, device: Events) -> Window:
    """From the first kernel of a step to the last."""
    if not len(device):
        return window
    return Window(window.step, int(device.start_ns.min()), int(device.end_ns.max()))


def _launched(events: Events, window: Window) -> tuple[Events, IntArray]:
    """What the device did for the calls of a window, and when each was called, [N]."""
    calls = events.where(
        _within(events, window) & np.isin(events.category, _CALLS) & (events.correlation >= 0)
    )
    at = dict(zip(calls.correlation.tolist(), calls.start_ns.tolist(), strict=True))
    device = events.where(np.isin(events.category, _DEVICE))
    own = np.array([number in at for number in device.correlation.tolist()], dtype=np.bool_)
    device = device.where(own)
    return device, np.array([at[number] for number in device.correlation.tolist()], dtype=np.int64)


def _kernel_phase(name: str, called_ns: int, work: Sequence[Piece]) -> Phase:
    if name.startswith("Memcpy HtoD"):
        return Phase.H2D
    inside = next(
        (piece.phase for piece in work if piece.start_ns <= called_ns <= piece.end_ns), Phase.OTHER
    )
    return Phase.PREP if inside is Phase.FETCH else inside
