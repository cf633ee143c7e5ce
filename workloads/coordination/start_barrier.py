"""Barrier of all ranks outside the network: at the start and at every evaluation.

A barrier opens for all ranks at one announced time, so that its wait sends no training traffic and
ends at the same time everywhere. The ranks of one machine use shared memory. The barrier of the
first step is number 1; that of evaluation e is e + 2.

If the ranks run on several machines, each machine has such a memory. A relay (barrier_relay.py)
copies changes between them over a path that is not shaped. Rank 0, the evaluator and the memory
that they write are on the head.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from laggard.workloads.tracing.heartbeat import map_file

START_BARRIER = 1
LEAD_NS = 10_000_000
"""Time between the announcement and the opening of a barrier on one machine."""
RELAYED_LEAD_NS = 250_000_000
"""Time between the announcement and the opening of a barrier on several machines; the relay has to
reach every machine in this time."""

POLL_S = 0.002

_WORDS = 16
(
    _OPENED,
    _OPEN_NS,
    _PAUSED_NS,
    _VERDICT,
    _LAST_STEP,
    _REASON,
    _STEP,
    _FINAL,
    _CONFIRMED,
    _STOP_REQUESTED,
) = range(10)
_ARRIVED, _ARRIVAL_NS = range(2)


class EvaluationVerdict(enum.IntEnum):
    """Verdict of the evaluator when it opens a barrier."""

    GO_ON = 0
    STOP = 1


class Reason(enum.IntEnum):
    """Reason for the end of training."""

    NONE = 0
    STEPS = 1
    TIME = 2
    WALLTIME = 3
    ACCURACY = 4


@dataclass(frozen=True)
class BarrierOpening:
    """Time at which a barrier opened (CLOCK_MONOTONIC), and the verdict."""

    open_ns: int
    verdict: EvaluationVerdict


def evaluation_barrier(evaluation: int) -> int:
    """Return the number of the barrier of an evaluation (counted from 0)."""
    return START_BARRIER + 1 + evaluation


class StartBarrier:
    """Start barrier of one training.

    Args:
        path: file behind the shared memory.
        world_size: number of ranks.
        relayed: whether a relay copies the barrier to other machines.
    """

    def __init__(self, path: Path, world_size: int, *, relayed: bool = False) -> None:
        self._relayed = relayed
        self._map = map_file(path, (1 + world_size) * _WORDS * 8)
        words = np.frombuffer(self._map, dtype=np.int64).reshape(1 + world_size, _WORDS)
        self._head, self._ranks = words[0], words[1:]

    def arrive(self, rank: int, barrier: int, arrival_ns: int) -> None:
        """Record the time at which a rank arrived at a barrier."""
        self._ranks[rank, _ARRIVAL_NS] = arrival_ns
        # The number comes last here, in `announce` and in `learn_last_step`: readers take the other
        # words as valid once it has changed.
        self._ranks[rank, _ARRIVED] = barrier

    def has_arrived(self, rank: int, barrier: int) -> bool:
        """Return whether a rank has arrived at a barrier."""
        return bool(self._ranks[rank, _ARRIVED] >= barrier)

    def last_arrival_ns(self, barrier: int, absent: Collection[int] = ()) -> int | None:
        """Return the time of the last arrival; None while a rank not in `absent` is missing."""
        expected = [rank for rank in range(len(self._ranks)) if rank not in absent]
        if (self._ranks[expected, _ARRIVED] < barrier).any():
            return None
        return int(self._ranks[expected, _ARRIVAL_NS].max())

    def open(
        self,
        barrier: int,
        verdict: EvaluationVerdict = EvaluationVerdict.GO_ON,
        paused_since_ns: int | None = None,
    ) -> int:
        """Open a barrier for all ranks, after a short lead time.

        Args:
            barrier: number of the barrier.
            verdict: verdict for the ranks.
            paused_since_ns: time since which the training's clock is paused; None if it is not.

        Returns:
            The time of the opening, CLOCK_MONOTONIC ns.
        """
        open_ns = time.monotonic_ns() + (RELAYED_LEAD_NS if self._relayed else LEAD_NS)
        if paused_since_ns is not None:
            # The pause ends when the barrier opens, which is a lead time from now.
            self._head[_PAUSED_NS] += open_ns - paused_since_ns
        self.announce(barrier, BarrierOpening(open_ns, verdict))
        return open_ns

    def announce(self, barrier: int, opening: BarrierOpening) -> None:
        """Announce the opening of a barrier to the ranks that wait at it."""
        self._head[_OPEN_NS], self._head[_VERDICT] = opening.open_ns, opening.verdict
        self._head[_OPENED] = barrier

    @property
    def announced(self) -> tuple[int, BarrierOpening]:
        """Number of the last announced barrier (0 for none), and its opening."""
        return int(self._head[_OPENED]), BarrierOpening(
            int(self._head[_OPEN_NS]), EvaluationVerdict(int(self._head[_VERDICT]))
        )

    def arrival(self, rank: int) -> tuple[int, int]:
        """Return the last barrier at which a rank arrived (0 for none), and the time."""
        return int(self._ranks[rank, _ARRIVED]), int(self._ranks[rank, _ARRIVAL_NS])

    def wait(self, barrier: int) -> BarrierOpening:
        """Wait until a barrier opens."""
        while self._head[_OPENED] < barrier:
            time.sleep(POLL_S)
        opening = BarrierOpening(
            int(self._head[_OPEN_NS]), EvaluationVerdict(int(self._head[_VERDICT]))
        )
        time.sleep(max(0, opening.open_ns - time.monotonic_ns()) / 1e9)
        return opening

    @property
    def paused_ns(self) -> int:
        """Nanoseconds for which the training's clock has been paused."""
        return int(self._head[_PAUSED_NS])

    def request_evaluation(self, step: int, *, final: bool) -> None:
        """Request an evaluation after a step; rank 0 does this before it arrives.

        Args:
            step: step after which the model is evaluated.
            final: whether the step was the last one.
        """
        self._head[_STEP], self._head[_FINAL] = step, final

    @property
    def requested_evaluation(self) -> tuple[int, bool]:
        """Step of the requested evaluation, and whether it was the last step."""
        return int(self._head[_STEP]), bool(self._head[_FINAL])

    def name_last_step(self, step: int, reason: Reason) -> None:
        """Name the last step; rank 0 does this before it begins that step.

        No rank can finish the step without rank 0's gradient, so every rank reads the name in
        time. If there are other machines, this waits until the relay has confirmed that they all
        know it.
        """
        self.learn_last_step(step, reason)
        while self._relayed and not self._head[_CONFIRMED]:
            time.sleep(POLL_S)

    def learn_last_step(self, step: int, reason: Reason) -> None:
        """Record which step is the last."""
        self._head[_REASON] = reason
        # 0 means that the last step has not been named.
        self._head[_LAST_STEP] = step + 1

    def confirm_last_step(self) -> None:
        """Record that every machine knows the last step."""
        self._head[_CONFIRMED] = 1

    def request_stop(self, reason: Reason = Reason.WALLTIME) -> None:
        """Ask the process that decides the end of training to end it soon.

        Reasons are the end of the machines' walltime, or an accuracy that was reached.
        """
        self._head[_STOP_REQUESTED] = reason

    @property
    def is_stop_requested(self) -> Reason:
        """Reason of a requested stop; NONE if there is none."""
        return Reason(int(self._head[_STOP_REQUESTED]))

    def last_step(self) -> tuple[int, Reason] | None:
        """Return the last step and its reason; None until rank 0 has named it."""
        named = int(self._head[_LAST_STEP])
        return (named - 1, Reason(int(self._head[_REASON]))) if named else None
