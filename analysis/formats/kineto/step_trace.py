"""Work and collectives of one rank in one step, as a trace of torch.profiler shows them."""

from __future__ import annotations

from dataclasses import dataclass

from laggard.analysis.formats.import_run.main_lane import BusyTimes, TraceSpan
from laggard.analysis.formats.kineto.process_groups import ProcessGroup

_POINT_TO_POINT = frozenset(("send", "recv", "isend", "irecv", "coalesced"))
# A rank that only sends may leave before the others arrive.
_ONE_SIDED = _POINT_TO_POINT | {
    "broadcast",
    "broadcastoop",
    "reduce",
    "reduceoop",
    "gather",
    "scatter",
}


NO_THREAD = -1
"""Number of the thread of a collective that no thread ran."""


@dataclass(frozen=True)
class StepWindow:
    """Step as the profiler's annotation delimits it."""

    step: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class MessageEnd:
    """End of a message between two ranks.

    Attributes:
        is_send: whether the rank sends it.
        peer: rank of the job at the other end.
    """

    is_send: bool
    peer: int


@dataclass(frozen=True, slots=True)
class RankCollective:
    """Collective of one rank, from its launch or arrival to its end.

    Attributes:
        kind: normalized name of the operation, such as `allreduce`.
        start_ns: launch (gloo) or start of the kernel (NCCL).
        end_ns: end of the operation.
        bytes: bytes of the inputs, or 0 if not recorded.
        group: process group of the collective, or None if the trace does not record it.
        messages: messages that are exchanged together; empty for other collectives, and if the
            trace does not record their peers.
        thread: thread of gloo that ran it, or -1.
    """

    kind: str
    start_ns: int
    end_ns: int
    bytes: int = 0
    group: ProcessGroup | None = None
    messages: tuple[MessageEnd, ...] = ()
    thread: int = NO_THREAD

    @property
    def is_point_to_point(self) -> bool:
        """Return whether only two ranks of the group take part."""
        return self.kind in _POINT_TO_POINT

    @property
    def ends_together(self) -> bool:
        """Return whether no rank can leave before all have arrived."""
        return self.kind not in _ONE_SIDED


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
        on_device: whether the times are those of a device's kernels.
    """

    window: StepWindow
    work: tuple[TraceSpan, ...]
    collectives: tuple[RankCollective, ...]
    busy: BusyTimes
    backward: tuple[tuple[int, int], ...]
    resumes: tuple[int, ...]
    last_ns: int
    on_device: bool

    def find_backward_pass(self, moment_ns: int) -> int | None:
        """Return the index of the backward pass that was in progress, or None."""
        return next(
            (n for n, (start, end) in enumerate(self.backward) if start <= moment_ns <= end), None
        )

    def latest_end_ns(self, launch_ns: int) -> int:
        """Return the time from which a collective can no longer have blocked the rank."""
        place = self.find_backward_pass(launch_ns)
        return self.last_ns if place is None else self.resumes[place]
