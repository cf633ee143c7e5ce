"""Carries the barriers of one machine's shared memory to and from the other machines of a training.

The head's machine has rank 0, the evaluator and the memory they write openings into; it must see
the arrivals of all ranks. The others must see the openings and the last step. What crosses is told
in the time of one reference clock, which every machine converts to its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from laggard.workloads.coordination.start_barrier import (
    BarrierOpening,
    EvaluationVerdict,
    Reason,
    StartBarrier,
)

ClockMap = Callable[[int], int]


class _BarrierUpdate(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Arrived(_BarrierUpdate):
    """A rank waits at a barrier since `time_ns` (reference clock)."""

    kind: Literal["arrived"] = "arrived"
    rank: int
    barrier: int
    time_ns: int


class Opened(_BarrierUpdate):
    """A barrier opens at `time_ns` (reference clock)."""

    kind: Literal["opened"] = "opened"
    barrier: int
    time_ns: int
    verdict: EvaluationVerdict


class LastStep(_BarrierUpdate):
    """Rank 0 has named the last step, and waits until every machine has `LastStepKnown`."""

    kind: Literal["last_step"] = "last_step"
    step: int
    reason: Reason


class LastStepKnown(_BarrierUpdate):
    """A machine's ranks know of the last step."""

    kind: Literal["last_step_known"] = "last_step_known"


class LastStepConfirmed(_BarrierUpdate):
    """Every machine's ranks do: rank 0 may begin it."""

    kind: Literal["last_step_confirmed"] = "last_step_confirmed"


class StopRequested(_BarrierUpdate):
    """The machines are about to be taken away: the next step shall be the last."""

    kind: Literal["stop_requested"] = "stop_requested"


BarrierUpdate = Arrived | Opened | LastStep | LastStepKnown | LastStepConfirmed | StopRequested
BARRIER_UPDATE_TYPES = (Arrived, Opened, LastStep, LastStepKnown, LastStepConfirmed, StopRequested)


class BarrierRelay:
    """One machine's end.

    Args:
        start_barrier: its memory.
        ranks: the ranks that run on it.
        to_reference: from its CLOCK_MONOTONIC to the reference clock, ns.
        to_local: and back.
    """

    def __init__(
        self,
        start_barrier: StartBarrier,
        ranks: Sequence[int],
        to_reference: ClockMap,
        to_local: ClockMap,
    ) -> None:
        self._start_barrier = start_barrier
        self._ranks = tuple(ranks)
        self._to_reference, self._to_local = to_reference, to_local
        self._arrived = dict.fromkeys(self._ranks, 0)
        self._opened = 0
        self._is_last_step_sent = False

    @property
    def is_head(self) -> bool:
        """Whether rank 0 runs here."""
        return 0 in self._ranks

    def poll_updates(self) -> Iterator[BarrierUpdate]:
        """Return the updates written into this memory since the last call, for other machines."""
        for rank, known in self._arrived.items():
            barrier, time_ns = self._start_barrier.arrival(rank)
            if barrier > known:
                self._arrived[rank] = barrier
                yield Arrived(rank=rank, barrier=barrier, time_ns=self._to_reference(time_ns))
        if self.is_head:
            yield from self._list_head_updates()

    def _list_head_updates(self) -> Iterator[BarrierUpdate]:
        barrier, opening = self._start_barrier.announced
        if barrier > self._opened:
            self._opened = barrier
            yield Opened(
                barrier=barrier,
                time_ns=self._to_reference(opening.open_ns),
                verdict=opening.verdict,
            )
        last = self._start_barrier.last_step()
        if last is not None and not self._is_last_step_sent:
            self._is_last_step_sent = True
            yield LastStep(step=last[0], reason=last[1])

    def apply_update(self, update: BarrierUpdate) -> BarrierUpdate | None:
        """Write what another machine's memory says into this one; returns what to answer, if
        anything.
        """
        if isinstance(update, Arrived) and update.rank not in self._arrived:
            self._start_barrier.arrive(update.rank, update.barrier, self._to_local(update.time_ns))
        elif isinstance(update, Opened):
            self._start_barrier.announce(
                update.barrier, BarrierOpening(self._to_local(update.time_ns), update.verdict)
            )
        elif isinstance(update, LastStep):
            self._start_barrier.learn_last_step(update.step, update.reason)
            return LastStepKnown()
        elif isinstance(update, LastStepConfirmed):
            self._start_barrier.confirm_last_step()
        elif isinstance(update, StopRequested):
            self._start_barrier.request_stop()
        return None


class BarrierHub:
    """Decides which machine must hear which update; pure.

    Args:
        machines: all machines of the training.
        head: the one that rank 0 runs on.
    """

    def __init__(self, machines: Sequence[str], head: str) -> None:
        self._head = head
        self._others = tuple(machine for machine in machines if machine != head)
        self._ignorant = set(self._others)

    def route(self, source: str, update: BarrierUpdate) -> tuple[tuple[str, BarrierUpdate], ...]:
        """Return each machine that must receive an update, with the update."""
        if isinstance(update, Arrived):
            return ((self._head, update),) if source != self._head else ()
        if isinstance(update, LastStepKnown):
            self._ignorant.discard(source)
            return ((self._head, LastStepConfirmed()),) if not self._ignorant else ()
        if isinstance(update, LastStep) and not self._others:
            return ((self._head, LastStepConfirmed()),)
        if isinstance(update, Opened | LastStep):
            return tuple((other, update) for other in self._others)
        return ()
