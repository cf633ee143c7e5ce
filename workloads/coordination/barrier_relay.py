"""Relay of barrier updates between one machine's shared memory and the other machines.

The head has the rank that opens the barriers: rank 0, unless it is absent when training begins.
The head must learn of the arrivals of all ranks; the other machines must learn of the openings and
the last step. Times in updates are in the reference clock, which every machine converts to its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from laggard.core.node_values import Count, NodeMessage, Number, Rank
from laggard.workloads.coordination.start_barrier import (
    BarrierOpening,
    EvaluationVerdict,
    Reason,
    StartBarrier,
)

ClockMap = Callable[[int], int]


class Arrived(NodeMessage):
    """Arrival of a rank at a barrier, at `time_ns` (reference clock)."""

    kind: Literal["arrived"] = "arrived"
    rank: Rank
    barrier: Count
    time_ns: Number


class Opened(NodeMessage):
    """Opening of a barrier at `time_ns` (reference clock)."""

    kind: Literal["opened"] = "opened"
    barrier: Count
    time_ns: Number
    verdict: EvaluationVerdict


class LastStep(NodeMessage):
    """Last step as named by rank 0, which waits until every machine has sent `LastStepKnown`."""

    kind: Literal["last_step"] = "last_step"
    step: Number
    reason: Reason


class LastStepKnown(NodeMessage):
    """Acknowledgement that a machine's ranks know the last step."""

    kind: Literal["last_step_known"] = "last_step_known"


class LastStepConfirmed(NodeMessage):
    """Confirmation that every machine's ranks know the last step: rank 0 may begin it."""

    kind: Literal["last_step_confirmed"] = "last_step_confirmed"


class StopRequested(NodeMessage):
    """Request to stop, because the walltime of the machines is about to end."""

    kind: Literal["stop_requested"] = "stop_requested"


BarrierUpdate = Arrived | Opened | LastStep | LastStepKnown | LastStepConfirmed | StopRequested
BARRIER_UPDATE_TYPES = (Arrived, Opened, LastStep, LastStepKnown, LastStepConfirmed, StopRequested)


class BarrierRelay:
    """Relay on one machine.

    Args:
        start_barrier: start barrier of this machine.
        ranks: ranks that run on this machine.
        to_reference: conversion from this machine's CLOCK_MONOTONIC to the reference clock, ns.
        to_local: the inverse conversion.
        is_head: whether the rank that opens the barriers runs on this machine.
    """

    def __init__(
        self,
        start_barrier: StartBarrier,
        ranks: Sequence[int],
        to_reference: ClockMap,
        to_local: ClockMap,
        *,
        is_head: bool,
    ) -> None:
        self._start_barrier, self.is_head = start_barrier, is_head
        self._ranks = tuple(ranks)
        self._to_reference, self._to_local = to_reference, to_local
        self._arrived = dict.fromkeys(self._ranks, 0)
        self._opened = 0
        self._is_last_step_sent = False

    def poll_updates(self) -> Iterator[BarrierUpdate]:
        """Yield the changes of this machine's barrier since the last call, for other machines."""
        for rank, known in self._arrived.items():
            barrier, time_ns = self._start_barrier.arrival(rank)
            if barrier > known:
                self._arrived[rank] = barrier
                yield Arrived(rank=rank, barrier=barrier, time_ns=self._to_reference(time_ns))
        if self.is_head:
            yield from self._list_head_updates()

    def _list_head_updates(self) -> Iterator[BarrierUpdate]:
        """Yield new openings and the last step, which only the head announces."""
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
        """Write an update of another machine into this barrier and return the answer, if any."""
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
    """Router of barrier updates between machines; pure.

    Args:
        machines: all machines of the training.
        head: machine of the rank that opens the barriers.
    """

    def __init__(self, machines: Sequence[str], head: str) -> None:
        self._head = head
        self._others = tuple(machine for machine in machines if machine != head)
        # Machines that have not acknowledged the last step yet.
        self._ignorant = set(self._others)

    def route(self, source: str, update: BarrierUpdate) -> tuple[tuple[str, BarrierUpdate], ...]:
        """Return the receivers of an update, each with the update to send.

        The answer to the last missing `LastStepKnown` is `LastStepConfirmed`.
        """
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
