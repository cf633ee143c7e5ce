"""Local SGD whose averages are made while ranks train on: nobody waits, neither for slow ranks nor
for slow links.

J. Wang, H. Liang, G. Joshi, "Overlap Local-SGD: An Algorithmic Approach to Hide Communication
Delays in Distributed SGD", ICASSP 2020; here ranks need not take the same number of steps between
two averages, and count by the samples that they have learnt from (B. McMahan et al., AISTATS 2017).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection

from laggard.span_schema import Phase
from laggard.workloads.datasets.dataset import Batch
from laggard.workloads.learnt import Learnt
from laggard.workloads.partition import Share
from laggard.workloads.strategies.average_member import (
    AverageMember,
    Brought,
    Lead,
    Open,
    Outcome,
    Terms,
    at_once,
    keep,
)
from laggard.workloads.strategies.beside_training import BesideTraining
from laggard.workloads.strategies.parameters import OverlapLocalSGDParameters
from laggard.workloads.strategies.peers import WAIT_S
from laggard.workloads.strategies.sessions import in_session
from laggard.workloads.strategies.strategy import Seat
from laggard.workloads.transport.frames import Message

NEW = 0.25
"""Part that the last step has in what a step is said to take."""


class Overlapping(BesideTraining):
    """x_i <- x_i - lr * g_i(x_i as it was read), and beside it x_i <- x_i + (mean of all x_j as
    they were brought) - (x_i as it was brought).

    Args:
        seat: what this rank trains with.
        terms: when to average, to begin with.
        ready_part: part of the ranks that must be ready for it.
        lead: the terms from then on, where this rank is the leader (see average_member.py).
        first: the terms of the first average, once it may begin (see there).
    """

    def __init__(
        self, seat: Seat, terms: Terms, ready_part: float, lead: Lead = keep, first: Open = at_once
    ) -> None:
        super().__init__(seat)
        self._terms, self._ready_part, self._lead, self._first = terms, ready_part, lead, first
        self._meet({seat.rank, *self._there})
        self._samples = self._untold = 0
        self._ended_ns, self._step_ns = 0, 0
        self._may_go_on = threading.Event()

    @property
    def weight(self) -> float:
        """By samples since the last average (see `PeerStrategy`)."""
        return float(max(self._samples, 1))

    @property
    def _trip_ns(self) -> int | None:
        """What an exchange of two took; None where one is to come before this rank is ready for an
        average of all.
        """
        return 0

    def _bring(self) -> Brought:
        samples, self._samples = self._samples, 0
        return Brought(self._current.bring(), samples)

    def _settle(self, outcome: Outcome) -> None:
        self._samples += outcome.samples
        if outcome.move is None:
            self._current.take_back()
        else:
            self._current.take_mean(outcome.move)

    def step(self, step: int, batch: Batch, share: Share) -> Learnt:
        """As without waiting; then wait, if that is agreed (see `OwnPaceStrategy`)."""
        learnt = super().step(step, batch, share)
        if self._waits():
            self._seat.recorder.enter(Phase.COMM)
            while self._waits() and not self._peers.over:
                self._may_go_on.wait(WAIT_S)
                self._may_go_on.clear()
            self._seat.recorder.enter(Phase.OTHER)
            self._ended_ns = time.monotonic_ns()  # to wait is no part of a step
        return learnt

    def _waits(self) -> bool:
        with self._lock:
            return self._member.waits or (self._member.terms.waits and self._untold > 0)

    def _meet(self, there: Collection[int]) -> None:
        self._member = AverageMember(
            self._seat.rank,
            there,
            self._terms,
            self._ready_part,
            self._bring,
            self._settle,
            self._lead,
            self._first,
            begun=in_session(self._peers.session_of(self._seat.rank)),
        )

    def _note_arrival(self, rank: int) -> None:
        self._member.admit(rank)

    def _note_step(self, samples: int) -> None:
        now_ns = time.monotonic_ns()
        if self._ended_ns:
            step_ns = now_ns - self._ended_ns
            self._step_ns += round((step_ns - self._step_ns) * NEW) if self._step_ns else step_ns
        self._ended_ns = now_ns
        self._samples += samples
        self._untold += 1

    def _note_loss(self, rank: int) -> None:
        self._member.leave(rank)

    def _hear(self, message: Message) -> None:
        with self._lock:
            self._member.hear(message)
        self._post()

    def _exchange_models(self) -> None:
        with self._lock:
            untold, self._untold = self._untold, 0
            if untold:
                self._member.take_steps(untold, self._step_ns, self._trip_ns)
        self._post()

    def _post(self) -> None:
        self._may_go_on.set()
        while self._member.outbox:
            self._peers.send(*self._member.outbox.popleft())


class OverlapLocalSGD(Overlapping):
    """With the same terms all along.

    Args:
        parameters: when to average.
        seat: what this rank trains with.
    """

    def __init__(self, parameters: OverlapLocalSGDParameters, seat: Seat) -> None:
        super().__init__(seat, Terms(parameters.steps), parameters.ready_part)
