"""Workers that leave and join at scheduled times during training, and a record of them."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from laggard.core.errors import WorkerError
from laggard.core.run_schema import ChurnEvent
from laggard.core.virtual_time import Dilation
from laggard.workloads.plan import WorkerPlan
from laggard.workloads.specification.churn import Turn

JOIN_TIMEOUT_S = 120.0
"""Virtual seconds that a worker may take to start and to receive the current state."""

_MAX_WAIT_S = 0.1
_MOST_WARNINGS = 10


class RankProcesses(Protocol):
    """Processes of the ranks, of which each rank has at most one at a time."""

    def start_joining(self, plan: WorkerPlan) -> None:
        """Start the process of a rank that joins the training.

        Args:
            plan: plan of the process, of which `late` is true.
        """

    def has_joined(self, rank: int) -> bool:
        """Return whether the last process that was started for a rank has joined."""

    def kill_rank(self, rank: int) -> bool:
        """Kill a rank's process, so that its end is no failure; return whether it was running."""

    def read_last_words(self, rank: int) -> str:
        """Return the last lines of the log of a rank's last process."""


@dataclass(frozen=True)
class ChurnReceiver:
    """Receiver of what a scheduler has done.

    Attributes:
        record: function that receives all departures and arrivals so far.
        warn: function that receives warnings for the user.
    """

    record: Callable[[tuple[ChurnEvent, ...]], None]
    warn: Callable[[tuple[str, ...]], None]


@dataclass(frozen=True)
class _JoiningWorker:
    requested_s: float
    started_s: float


@dataclass
class ChurnScheduler:
    """Scheduler for the `churn:` section of one scenario.

    Args:
        due: the departures and arrivals, in their order.
        workers: plans of all ranks; every worker that is not late has been started.
        processes: processes of the ranks.
        dilation: real seconds per virtual second.
        receiver: receiver of what was done.
    """

    due: Sequence[Turn]
    workers: Sequence[WorkerPlan]
    processes: RankProcesses
    dilation: Dilation
    receiver: ChurnReceiver
    _zero_ns: int = 0
    _due: deque[Turn] = field(default_factory=deque)
    _plans: dict[int, WorkerPlan] = field(default_factory=dict)
    _started: set[int] = field(default_factory=set)
    _joining: dict[int, _JoiningWorker] = field(default_factory=dict)
    _turnovers: list[ChurnEvent] = field(default_factory=list)

    def start_clock(self, zero_ns: int) -> None:
        """Set time zero to the beginning of the first step, `zero_ns` (CLOCK_MONOTONIC)."""
        self._zero_ns = zero_ns
        self._due = deque(self.due)
        self._plans = {worker.rank: worker for worker in self.workers}
        self._started = {worker.rank for worker in self.workers if not worker.late}

    @property
    def wait_s(self) -> float:
        """Return the real seconds until `apply_due` must be called again, at most 0.1."""
        remaining_s = (
            self.dilation.real_s(self._due[0].at_s - self._now_s) if self._due else _MAX_WAIT_S
        )
        return min(max(remaining_s, 0.0), _MAX_WAIT_S)

    def apply_due(self) -> None:
        """Apply the entries that are due, and check for workers that have joined.

        Raises:
            WorkerError: a worker takes too long to join.
        """
        while self._due and self._due[0].at_s <= self._now_s:
            turn = self._due.popleft()
            for plan in [each for each in self._plans.values() if each.host == turn.host]:
                if turn.joins:
                    self._start_joining(plan, turn)
                else:
                    self._remove_worker(plan, turn)
        self._check_joining()

    def finish(self) -> None:
        """End the churn when training is over.

        Workers that have not joined yet are killed. The remaining entries are reported as
        warnings.
        """
        self._check_joining()
        for rank, joining in self._joining.items():
            self.processes.kill_rank(rank)
            start_text = (
                f"rank {rank} on {self._plans[rank].host} was started at {joining.requested_s:g} s"
            )
            self.receiver.warn((f"{start_text}, but training ended before it had joined",))
        late = [
            f"training ended before this churn entry was due: {turn.host}"
            f" {'joins' if turn.joins else 'leaves'} at {turn.at_s:g} s"
            for turn in itertools.islice(self._due, _MOST_WARNINGS)
        ]
        if more := len(self._due) - len(late):
            late.append(f"training ended before {more} more churn entries were due")
        self.receiver.warn(tuple(late))

    def _check_joining(self) -> None:
        for rank, joining in tuple(self._joining.items()):
            self._complete_join(rank, joining)

    @property
    def _now_s(self) -> float:
        return self.dilation.virtual_s((time.monotonic_ns() - self._zero_ns) / 1e9)

    def _start_joining(self, plan: WorkerPlan, turn: Turn) -> None:
        # A rank's successive processes are numbered, so that late messages to or from the earlier
        # one are ignored.
        if plan.rank in self._started:
            plan = self._plans[plan.rank] = plan.next_life()
        self._started.add(plan.rank)
        self.processes.start_joining(plan)
        self._joining[plan.rank] = _JoiningWorker(turn.at_s, self._now_s)

    def _remove_worker(self, plan: WorkerPlan, turn: Turn) -> None:
        self._joining.pop(plan.rank, None)
        if self.processes.kill_rank(plan.rank):
            self._record_turnover(plan, "left", turn.at_s)

    def _complete_join(self, rank: int, joining: _JoiningWorker) -> None:
        if self.processes.has_joined(rank):
            del self._joining[rank]
            self._record_turnover(self._plans[rank], "joined", joining.requested_s)
        elif self._now_s - joining.started_s > JOIN_TIMEOUT_S:
            raise WorkerError(
                f"has not joined the training within {JOIN_TIMEOUT_S:g} s",
                rank,
                self._plans[rank].host,
                self.processes.read_last_words(rank),
            )

    def _record_turnover(self, plan: WorkerPlan, kind: str, requested_s: float) -> None:
        turnover = {"rank": plan.rank, "host": plan.host, "kind": kind, "requested_s": requested_s}
        self._turnovers.append(
            ChurnEvent.model_validate({**turnover, "effective_s": round(self._now_s, 3)})
        )
        self.receiver.record(tuple(self._turnovers))
