"""Makes workers leave and join when it is time, while the others train, and puts down when they
did.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from laggard.errors import WorkerError
from laggard.experiments.job import Job
from laggard.experiments.supervise import Supervisor, Watched, tail
from laggard.run_schema import Turnover
from laggard.workloads.churn import Turn, turns
from laggard.workloads.plan import WorkerPlan

JOIN_TIMEOUT_S = 120.0
"""Virtual seconds that a worker may take to start and to be brought up to date."""

_LONGEST_S = 0.1


@dataclass(frozen=True)
class _Joining:
    process: Watched
    asked_s: float
    since_s: float


@dataclass
class Churn:
    """Follows the `churn:` of one scenario.

    Args:
        job: of the run.
        supervisor: kills who leaves, and watches who joins.
        workers: of all ranks, as planned; those that are not late have been started.
        start: starts a worker that joins.
    """

    job: Job
    supervisor: Supervisor
    workers: Sequence[WorkerPlan]
    start: Callable[[WorkerPlan], Watched]
    _zero_ns: int = 0
    _due: deque[Turn] = field(default_factory=deque)
    _plans: dict[int, WorkerPlan] = field(default_factory=dict)
    _joining: dict[int, _Joining] = field(default_factory=dict)
    _happened: list[Turnover] = field(default_factory=list)

    def begin(self, zero_ns: int) -> None:
        """The first step began at `zero_ns` (CLOCK_MONOTONIC)."""
        scenario = self.job.scenario
        self._zero_ns = zero_ns
        self._due = deque(turns(scenario.workload.churn, scenario.hosts, scenario.ranks))
        self._plans = {worker.rank: worker for worker in self.workers}

    @property
    def patience_s(self) -> float:
        """Real seconds until it has to be looked at again, 0.1 at most."""
        left_s = (
            self.job.dilation.real_s(self._due[0].at_s - self._now_s) if self._due else _LONGEST_S
        )
        return min(max(left_s, 0.0), _LONGEST_S)

    def keep_up(self) -> None:
        """Do what is due, and see who has joined.

        Raises:
            WorkerError: a worker takes too long to join.
        """
        while self._due and self._due[0].at_s <= self._now_s:
            turn = self._due.popleft()
            for plan in [each for each in self._plans.values() if each.host == turn.host]:
                if turn.joins:
                    self._start(plan, turn)
                else:
                    self._dismiss(plan, turn)
        self._see_who_joined()

    def end(self) -> None:
        """Training is over: who has not joined by now does not, and what was to come later does not
        happen.
        """
        self._see_who_joined()
        for rank, joining in self._joining.items():
            self.supervisor.dismiss(rank)
            told = (
                f"{joining.process.name} on {joining.process.host} was started at"
                f" {joining.asked_s:g} s"
            )
            self.job.journal.warn((f"{told}, and training was over before it had joined",))
        late = [
            f"{turn.host} {'joins' if turn.joins else 'leaves'} at {turn.at_s:g} s"
            for turn in self._due
        ]
        self.job.journal.warn(tuple(f"training was over before {each}" for each in late))

    def _see_who_joined(self) -> None:
        for rank, joining in tuple(self._joining.items()):
            self._welcome(rank, joining)

    @property
    def _now_s(self) -> float:
        return self.job.dilation.virtual_s((time.monotonic_ns() - self._zero_ns) / 1e9)

    def _start(self, plan: WorkerPlan, turn: Turn) -> None:
        if self.supervisor.has_run(plan.rank):
            plan = self._plans[plan.rank] = plan.next_life()
        self._joining[plan.rank] = _Joining(self.start(plan), turn.at_s, self._now_s)

    def _dismiss(self, plan: WorkerPlan, turn: Turn) -> None:
        self._joining.pop(plan.rank, None)
        if self.supervisor.dismiss(plan.rank):
            self._note(plan, "left", turn.at_s)

    def _welcome(self, rank: int, joining: _Joining) -> None:
        process = joining.process
        if process.joined is not None and process.joined.exists():
            del self._joining[rank]
            self._note(self._plans[rank], "joined", joining.asked_s)
        elif self._now_s - joining.since_s > JOIN_TIMEOUT_S:
            raise WorkerError(
                f"has not joined after {JOIN_TIMEOUT_S:g} s", rank, process.host, tail(process.log)
            )

    def _note(self, plan: WorkerPlan, kind: str, asked_s: float) -> None:
        happened = {"rank": plan.rank, "host": plan.host, "kind": kind, "asked_s": asked_s}
        self._happened.append(
            Turnover.model_validate({**happened, "effective_s": round(self._now_s, 3)})
        )
        self.job.journal.update(churn=tuple(self._happened))
