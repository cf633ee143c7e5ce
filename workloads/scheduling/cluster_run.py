"""A cluster that runs jobs in rounds, by a policy: simulated, or with a round's work executed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Self

import numpy as np

from laggard.core.cost_model.arrays import BoolArray, FloatArray, IntArray
from laggard.core.errors import InputError
from laggard.workloads.scheduling.cluster_jobs import (
    ClusterJob,
    ClusterState,
    DeviceType,
    PairSpeeds,
    build_throughput,
    require_jobs,
)
from laggard.workloads.scheduling.policy import Policy, SharingPolicy
from laggard.workloads.scheduling.rounds import NOWHERE, ReceivedTime, choose_round


@dataclass(frozen=True)
class RoundOptions:
    """Options of a simulated cluster.

    Attributes:
        round_s: seconds of a round.
        allocation_s: least seconds between two allocations.
        preemption_s: seconds that a job loses when it starts, or moves to other devices.
        overrun: steps that a turn does beyond the last whole one in its round.
        seed: seed of what a policy leaves to chance.
    """

    round_s: float = 360.0
    allocation_s: float = 1920.0
    preemption_s: float = 0.0
    overrun: int = 0
    seed: int = 1

    def __post_init__(self) -> None:
        if not self.round_s > self.preemption_s >= 0:
            raise InputError(
                f"a round of {self.round_s:g} s, in which a job that starts loses"
                f" {self.preemption_s:g} s: a round must be longer — give longer rounds"
            )


@dataclass(frozen=True)
class DeviceTurn:
    """Time in which a job ran without a pause.

    Attributes:
        job: index of the job.
        kind: index of the type of device.
        start_s: second at which it started.
        end_s: second at which it ended or was preempted.
    """

    job: int
    kind: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class RoundTurn:
    """Part of a job that is to be done in one round.

    Attributes:
        job: index of the job.
        kind: index of the type of device.
        devices: number of devices.
        steps_left: steps until its end.
        round_s: seconds of the round.
    """

    job: int
    kind: int
    devices: int
    steps_left: float
    round_s: float


@dataclass(frozen=True)
class TurnResult:
    """Steps that a job did in one round.

    Attributes:
        steps: number of steps.
        took_s: seconds that they took.
    """

    steps: float
    took_s: float


RoundWork = Callable[[Sequence[RoundTurn]], Sequence[TurnResult]]
"""Execution of one round: what all jobs are to do in, and what they did out."""


@dataclass(frozen=True)
class ClusterResult:
    """Jobs of a cluster that ran in rounds, by what they did or by their throughputs.

    Attributes:
        arrival_s: arrival of each job, [J].
        finish_s: end of each job, [J].
        received_s: seconds of each job on each type, [J, M].
        device_s: seconds in which devices of each type had a job, summed over them, [M].
        isolated_s: seconds that each job would have taken on an equal part of the cluster, [J].
        turns: who ran where and when.
        rounds: number of rounds.
        allocations: number of allocations that the policy made.
    """

    arrival_s: FloatArray
    finish_s: FloatArray
    received_s: FloatArray
    device_s: FloatArray
    isolated_s: FloatArray
    turns: tuple[DeviceTurn, ...]
    rounds: int
    allocations: int

    @property
    def completion_s(self) -> FloatArray:
        """Return the seconds from arrival to end of each job, [J]."""
        return self.finish_s - self.arrival_s

    @property
    def makespan_s(self) -> float:
        """Return the second at which the last job ended."""
        return float(self.finish_s.max())


@dataclass
class _Present:
    """Jobs that have arrived and not ended, in the order of their arrivals.

    Attributes:
        jobs: index of each, [P].
        steps_left: steps that it still has, [P].
        isolated_s: seconds that its steps so far would have taken on an equal part of the cluster.
        kind: type on which it runs, or `NOWHERE`, [P].
        speed: its steps per second on each type, with the devices that it gets there, [P, M].
        devices: number of its devices; 0 if it uses those of its partner, [P].
        partner: index of the job with which it shares a device, or -1, [P].
        alone: steps per second on each type once the partner has ended, [P, M].
    """

    jobs: IntArray
    steps_left: FloatArray
    isolated_s: FloatArray
    kind: IntArray
    speed: FloatArray
    devices: IntArray
    partner: IntArray
    alone: FloatArray

    @classmethod
    def begin(cls, jobs: IntArray, steps: FloatArray, speed: FloatArray, scale: IntArray) -> Self:
        """Return jobs that have just arrived, with the devices that they ask for."""
        zeros, none = np.zeros(len(jobs)), np.full(len(jobs), NOWHERE)
        return cls(jobs, steps, zeros, none, speed, scale, none, np.zeros_like(speed))

    def join(self, new: Self) -> Self:
        """Return these jobs and then the new ones."""
        pairs = ((getattr(self, f.name), getattr(new, f.name)) for f in fields(self))
        return type(self)(*map(np.concatenate, pairs))

    def keep(self, kept: BoolArray) -> Self:
        """Return some of the jobs; who loses a partner has the device alone."""
        left = type(self)(*(getattr(self, f.name)[kept] for f in fields(self)))
        alone = (left.partner != NOWHERE) & ~np.isin(left.partner, left.jobs)
        left.devices[alone], left.partner[alone] = 1, NOWHERE
        left.speed[alone] = left.alone[alone]
        return left


@dataclass
class _Cluster:
    """Running simulation."""

    jobs: Sequence[ClusterJob]
    types: Sequence[DeviceType]
    policy: Policy
    options: RoundOptions
    pairs: PairSpeeds
    work: RoundWork | None
    throughput: FloatArray = field(init=False)
    scale: IntArray = field(init=False)
    arrival_s: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        require_jobs(self.jobs, self.types)
        self.throughput = build_throughput(self.jobs, self.types)
        self.scale = np.array([job.scale for job in self.jobs], dtype=np.int64)
        self.arrival_s = np.array([job.arrival_s for job in self.jobs])
        self.priority = np.array([job.priority for job in self.jobs])
        self.counts = np.array([each.count for each in self.types], dtype=np.int64)
        self.prices = np.array([each.price_per_hour for each in self.types])
        none = np.zeros(0)
        nobody = np.zeros(0, dtype=np.int64)
        self.present = _Present.begin(nobody, none, self.throughput[nobody], nobody)
        self.names = tuple(each.name for each in self.types)
        self.device_s = np.zeros(len(self.types))
        self.times = ReceivedTime.empty(len(self.types))
        self.used_s = np.zeros(len(self.types))
        self.allocation = np.zeros((0, len(self.types)))
        self.finish_s = np.full(len(self.jobs), np.nan)
        self.rng = np.random.default_rng(self.options.seed)
        self.received_s = np.zeros_like(self.throughput)
        self.isolated_s = np.zeros(len(self.jobs))
        self.turns: list[DeviceTurn] = []
        self.open: dict[int, tuple[int, float]] = {}
        self.isolated = none
        self.rounds = self.allocations = 0
        self.stale, self.last_s = True, -np.inf

    def run(self) -> ClusterResult:
        now_s, coming = 0.0, 0
        while coming < len(self.jobs) or len(self.present.jobs):
            if not len(self.present.jobs):
                now_s = max(now_s, float(self.arrival_s[coming]))
            until = int(np.searchsorted(self.arrival_s, now_s, side="right"))
            if until > coming:
                self._add(np.arange(coming, until))
                coming = until
            if self.stale and (
                now_s >= self.last_s + self.options.allocation_s
                or (coming == len(self.jobs) and not (self.present.kind != NOWHERE).any())
            ):
                self._allocate(now_s)
            next_s = self._run_round(now_s)
            if next_s <= now_s:
                # No job has an allocation yet.
                next_s = self.last_s + self.options.allocation_s
            now_s = next_s
        for job, (kind, start_s) in self.open.items():
            self.turns.append(DeviceTurn(job, kind, start_s, float(self.finish_s[job])))
        return ClusterResult(
            self.arrival_s,
            self.finish_s,
            self.received_s,
            self.device_s,
            self.isolated_s,
            tuple(self.turns),
            self.rounds,
            self.allocations,
        )

    def _add(self, new: IntArray) -> None:
        count = len(new)
        steps = np.array([float(self.jobs[each].steps) for each in new])
        self.present = self.present.join(
            _Present.begin(new, steps, self.throughput[new], self.scale[new])
        )
        self.allocation = np.vstack([self.allocation, np.zeros((count, len(self.types)))])
        self.times.add_jobs(count, self.options.round_s)
        self.isolated = np.r_[self.isolated, np.full(count, np.nan)]
        self.stale = True

    def _allocate(self, now_s: float) -> None:
        jobs = self.present.jobs
        since_s = now_s - self.last_s if np.isfinite(self.last_s) else 0.0
        self.times.restart(self.allocation, since_s, self.options.round_s)
        self.used_s = self.times.received_s.sum(axis=0)
        state = ClusterState(
            jobs=tuple(self.jobs[each] for each in jobs),
            throughput=self.throughput[jobs],
            scale=self.scale[jobs],
            priority=self.priority[jobs],
            steps_left=self.present.steps_left,
            present_s=now_s - self.arrival_s[jobs],
            isolated_s=self.present.isolated_s,
            running=self.present.kind,
            counts=self.counts,
            prices=self.prices,
            types=self.names,
            pairs=self.pairs,
        )
        if isinstance(self.policy, SharingPolicy):
            self._grant(self.policy, state)
        else:
            self.allocation = self.policy.allocate(state)
        self.isolated = state.isolated_throughput
        self.stale, self.last_s = False, now_s
        self.allocations += 1

    def _grant(self, policy: SharingPolicy, state: ClusterState) -> None:
        grants, present = policy.grant(state), self.present
        self.allocation, present.speed = grants.allocation, grants.speed
        # Who has other devices than before starts anew on them.
        present.kind = np.where(present.devices == grants.devices, present.kind, NOWHERE)
        present.devices, present.alone = grants.devices, grants.alone
        shared = grants.partner != NOWHERE
        present.partner = np.where(shared, present.jobs[grants.partner], NOWHERE)

    def _run_round(self, now_s: float) -> float:
        """Run one round, and return the second at which it ends."""
        present = self.present
        # Jobs that have come since the last allocation wait for the next one. The second job of
        # a device goes where the first one goes.
        second = present.devices == 0
        waiting = np.isnan(self.isolated) | second
        known = np.where(waiting[:, None], 0.0, present.speed)
        chosen = choose_round(
            self.times.compute_priorities(self.allocation, self.used_s),
            self.times.deficit_s,
            known,
            present.devices,
            self.counts,
            self._order_types(),
            fill=not self.policy.in_turn,
        )
        chosen[second] = chosen[np.searchsorted(present.jobs, present.partner[second])]
        running = np.flatnonzero(chosen != NOWHERE)
        moved = chosen != present.kind
        self._record_moves(np.flatnonzero(moved), chosen, now_s)
        present.kind = chosen
        if not len(running):
            return now_s
        kinds = chosen[running]
        steps, took_s = (
            self._compute_round(running, moved[running])
            if self.work is None
            else self._execute_round(self.work, running)
        )
        present.steps_left[running] -= steps
        present.isolated_s[running] += steps / self.isolated[running]
        self.times.received_s[running, kinds] += took_s
        np.add.at(self.used_s, kinds, took_s)
        np.add.at(self.device_s, kinds, took_s * present.devices[running])
        self.received_s[present.jobs[running], kinds] += took_s
        self.rounds += 1
        ended = running[present.steps_left[running] <= 1e-9]
        if len(ended):
            end_s = now_s + took_s[np.searchsorted(running, ended)]
            self._remove(ended, end_s)
        return now_s + float(took_s.max())

    def _compute_round(self, running: IntArray, moved: BoolArray) -> tuple[FloatArray, FloatArray]:
        """Return the steps of all jobs that run, and the seconds that they take."""
        present, options = self.present, self.options
        speed = present.speed[running, present.kind[running]]
        lost_s = np.where(moved, options.preemption_s, 0.0)
        part = np.minimum(speed * (options.round_s - lost_s), present.steps_left[running])
        whole = np.floor(speed * (options.round_s - lost_s)) + options.overrun
        whole = np.minimum(whole, present.steps_left[running])
        # A job whose steps are longer than a round takes part of one.
        steps = np.where(whole > 0, whole, part)
        return steps, lost_s + steps / speed

    def _execute_round(self, work: RoundWork, running: IntArray) -> tuple[FloatArray, FloatArray]:
        """Have all jobs do their round, and return their steps and seconds."""
        present = self.present
        done = work(
            [
                RoundTurn(
                    int(present.jobs[each]),
                    int(present.kind[each]),
                    int(present.devices[each]),
                    float(present.steps_left[each]),
                    self.options.round_s,
                )
                for each in running
            ]
        )
        return np.array([each.steps for each in done]), np.array([each.took_s for each in done])

    def _order_types(self) -> list[int]:
        kinds = np.arange(len(self.types))
        return (kinds if self.policy.aware else self.rng.permutation(kinds)).tolist()

    def _record_moves(self, moved: IntArray, chosen: IntArray, now_s: float) -> None:
        for place in moved:
            job = int(self.present.jobs[place])
            if job in self.open:
                kind, start_s = self.open.pop(job)
                self.turns.append(DeviceTurn(job, kind, start_s, now_s))
            if chosen[place] != NOWHERE:
                self.open[job] = (int(chosen[place]), now_s)

    def _remove(self, ended: IntArray, end_s: FloatArray) -> None:
        present = self.present
        self.finish_s[present.jobs[ended]] = end_s
        self.isolated_s[present.jobs[ended]] = present.isolated_s[ended]
        kept = np.ones(len(present.jobs), dtype=bool)
        kept[ended] = False
        self.present = present.keep(kept)
        self.allocation, self.isolated = self.allocation[kept], self.isolated[kept]
        self.times.keep_jobs(kept)
        self.stale = True


def run_cluster(
    jobs: Sequence[ClusterJob],
    types: Sequence[DeviceType],
    policy: Policy,
    options: RoundOptions | None = None,
    pairs: PairSpeeds | None = None,
    work: RoundWork | None = None,
) -> ClusterResult:
    """Run jobs on a cluster until all have ended, simulated or with their work executed.

    Args:
        jobs: jobs in the order of their arrivals.
        types: types of devices.
        policy: policy that allocates time.
        options: rounds; those of Gavel's published simulations if None.
        pairs: speeds of jobs that share a device; none may if None.
        work: execution of a round; if None, jobs take as long as their throughputs say.

    Raises:
        InputError: a job cannot run, or two have the same name.
    """
    return _Cluster(jobs, types, policy, options or RoundOptions(), pairs or {}, work).run()
