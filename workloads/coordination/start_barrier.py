"""Barrier of all ranks outside the network: at the start and at every evaluation.

A barrier opens for all at one announced instant, so its wait sends no training traffic and ends
alike everywhere. The ranks meet in shared memory, which is what the processes of one machine have;
the first-step barrier is number 1, evaluation e is e + 2.

Where ranks live on several machines, each machine has such a memory and a relay (barrier_relay.py)
carries what is written into one over to the others, on a way that is not shaped. Rank 0, the
evaluator and the memory they write into are the head's.
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
RELAYED_LEAD_NS = 250_000_000
"""How far ahead a barrier's opening is announced: the relay has to reach every machine before."""

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
    """Why training ends."""

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
    """Number of the barrier of an evaluation (counted from 0)."""
    return START_BARRIER + 1 + evaluation


class StartBarrier:
    """The shared memory of one training.

    Args:
        path: the file behind it.
        world_size: number of ranks.
        relayed: whether ranks of other machines read it through a relay.
    """

    def __init__(self, path: Path, world_size: int, *, relayed: bool = False) -> None:
        self._relayed = relayed
        self._map = map_file(path, (1 + world_size) * _WORDS * 8)
        words = np.frombuffer(self._map, dtype=np.int64).reshape(1 + world_size, _WORDS)
        self._head, self._ranks = words[0], words[1:]

    def arrive(self, rank: int, barrier: int, arrival_ns: int) -> None:
        """A rank says since when it waits at a barrier."""
        self._ranks[rank, _ARRIVAL_NS] = arrival_ns
        self._ranks[rank, _ARRIVED] = barrier

    def has_arrived(self, rank: int, barrier: int) -> bool:
        """Whether a rank waits at a barrier."""
        return bool(self._ranks[rank, _ARRIVED] >= barrier)

    def last_arrival_ns(self, barrier: int, absent: Collection[int] = ()) -> int | None:
        """When the last rank arrived; None while one is missing that is not `absent`."""
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
        """Open a barrier for all, a moment from now.

        Args:
            barrier: its number.
            verdict: what the ranks do next.
            paused_since_ns: since when the clock of the training stands still, if it does.

        Returns:
            When it opens, CLOCK_MONOTONIC nanoseconds.
        """
        open_ns = time.monotonic_ns() + (RELAYED_LEAD_NS if self._relayed else LEAD_NS)
        if paused_since_ns is not None:
            self._head[_PAUSED_NS] += open_ns - paused_since_ns
        self.announce(barrier, BarrierOpening(open_ns, verdict))
        return open_ns

    def announce(self, barrier: int, opening: BarrierOpening) -> None:
        """Let all who wait at a barrier go when it opens."""
        self._head[_OPEN_NS], self._head[_VERDICT] = opening.open_ns, opening.verdict
        self._head[_OPENED] = barrier

    @property
    def announced(self) -> tuple[int, BarrierOpening]:
        """The last barrier that opened, or is about to (0: none yet), and when."""
        return int(self._head[_OPENED]), BarrierOpening(
            int(self._head[_OPEN_NS]), EvaluationVerdict(int(self._head[_VERDICT]))
        )

    def arrival(self, rank: int) -> tuple[int, int]:
        """The last barrier at which a rank arrived (0: none yet), and when."""
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
        """Nanoseconds for which the clock of the training has been paused."""
        return int(self._head[_PAUSED_NS])

    def request_evaluation(self, step: int, *, final: bool) -> None:
        """Rank 0 says, before it arrives, after which step it is evaluated and whether that was the
        last.
        """
        self._head[_STEP], self._head[_FINAL] = step, final

    @property
    def requested_evaluation(self) -> tuple[int, bool]:
        """Step to evaluate, and whether it was the last."""
        return int(self._head[_STEP]), bool(self._head[_FINAL])

    def name_last_step(self, step: int, reason: Reason) -> None:
        """Rank 0 says, before it begins a step, that this one is the last.

        Nobody can finish that step without rank 0's gradient, so everybody reads this in time;
        ranks of other machines do once the relay has confirmed that it told them all, which this
        waits for.
        """
        self.learn_last_step(step, reason)
        while self._relayed and not self._head[_CONFIRMED]:
            time.sleep(POLL_S)

    def learn_last_step(self, step: int, reason: Reason) -> None:
        """Put down which step is the last."""
        self._head[_REASON] = reason
        self._head[_LAST_STEP] = step + 1

    def confirm_last_step(self) -> None:
        """Every machine knows of the last step."""
        self._head[_CONFIRMED] = 1

    def request_stop(self, reason: Reason = Reason.WALLTIME) -> None:
        """Ask who decides it to end training soon: the machines are about to be taken away, or the
        model is good enough.
        """
        self._head[_STOP_REQUESTED] = reason

    @property
    def is_stop_requested(self) -> Reason:
        """Reason of a requested stop, if there is one."""
        return Reason(int(self._head[_STOP_REQUESTED]))

    def last_step(self) -> tuple[int, Reason] | None:
        """The last step and why it is, once rank 0 has named it."""
        named = int(self._head[_LAST_STEP])
        return (named - 1, Reason(int(self._head[_REASON]))) if named else None
