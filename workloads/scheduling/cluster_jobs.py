"""Devices of a cluster, its jobs, and what a policy sees of them at one moment."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from laggard.core.cost_model.arrays import FloatArray, IntArray
from laggard.core.errors import InputError


@dataclass(frozen=True)
class DeviceType:
    """Devices of a cluster that are alike.

    Attributes:
        name: name of the type.
        count: number of devices.
        price_per_hour: price of one device for an hour.
    """

    name: str
    count: int
    price_per_hour: float = 0.0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InputError(f"{self.name}: {self.count} devices, which must be at least 1")
        if not (math.isfinite(self.price_per_hour) and self.price_per_hour >= 0):
            raise InputError(
                f"{self.name}: price {self.price_per_hour}, which must be finite and at least 0"
            )


class TeamOrder(StrEnum):
    """Order in which jobs of a team have its part of a cluster: all at once, or in turn."""

    FAIRNESS = "fairness"
    FIFO = "fifo"


@dataclass(frozen=True)
class JobTeam:
    """Jobs that share a part of a cluster under the policy `hierarchical`.

    Attributes:
        name: name of the team.
        weight: weight of the team beside others.
        order: how its jobs share its part.
    """

    name: str = ""
    weight: float = 1.0
    order: TeamOrder = TeamOrder.FAIRNESS


@dataclass(frozen=True)
class ClusterJob:
    """Training that shares a cluster with others.

    Attributes:
        name: name of the job, which no other one has.
        steps: number of steps.
        throughput: steps per second on `scale` devices of each type; a type that is missing cannot
            run it.
        scale: devices that it needs at the same time (a gang).
        arrival_s: second at which it arrives.
        priority: weight of the job in fair policies.
        curves: its steps per second on other numbers of devices, by type and number.
        kind: jobs of one kind share a device with others equally well; its name if empty.
        team: team to which it belongs.
    """

    name: str
    steps: int
    throughput: Mapping[str, float]
    scale: int = 1
    arrival_s: float = 0.0
    priority: float = 1.0
    curves: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    kind: str = ""
    team: JobTeam = JobTeam()

    def __post_init__(self) -> None:
        for what, value in (("steps", self.steps), ("scale", self.scale)):
            if value < 1:
                raise InputError(f"{self.name}: {what} is {value} and must be at least 1")
        if not (math.isfinite(self.arrival_s) and self.arrival_s >= 0):
            raise InputError(f"{self.name}: arrival {self.arrival_s} s, which must be at least 0")
        if not (math.isfinite(self.priority) and self.priority > 0):
            raise InputError(f"{self.name}: priority {self.priority}, which must be above 0")
        for kind in {**self.throughput, **self.curves}:
            self._require_curve(kind)
        if not any(self.throughput.values()):
            raise InputError(
                f"{self.name}: runs on no type of device — give its steps per second on one"
            )

    def _require_curve(self, kind: str) -> None:
        for devices, speed in self.get_curve(kind).items():
            if devices < 1:
                raise InputError(
                    f"{self.name}: a speed on {devices} {kind}: give at least 1 device"
                )
            if not (math.isfinite(speed) and speed >= 0):
                raise InputError(
                    f"{self.name}: {speed} steps/s on {kind}, which must be finite and at least 0"
                )

    def get_curve(self, kind: str) -> Mapping[int, float]:
        """Return the steps per second on a type by number of devices, its scale included."""
        return {**self.curves.get(kind, {}), self.scale: self.throughput.get(kind, 0.0)}


PairSpeeds = Mapping[tuple[str, str], Mapping[str, tuple[float, float]]]
"""Steps per second of two jobs that share one device, by their kinds and by type of device."""


def require_jobs(jobs: Sequence[ClusterJob], types: Sequence[DeviceType]) -> None:
    """Require that jobs can run on a cluster.

    Raises:
        InputError: a name occurs twice, jobs are not sorted, or a job fits nowhere.
    """
    seen: set[str] = set()
    last_s = 0.0
    for job in jobs:
        if job.name in seen:
            raise InputError(f"{job.name}: two jobs have this name — rename one")
        seen.add(job.name)
        if job.arrival_s < last_s:
            raise InputError(
                f"{job.name}: arrives at {job.arrival_s:g} s, before the job above it at"
                f" {last_s:g} s — sort the jobs by their arrivals"
            )
        last_s = job.arrival_s
        able = [each for each in types if job.throughput.get(each.name, 0.0) > 0]
        if not able:
            names = ", ".join(each.name for each in types)
            raise InputError(f"{job.name}: has no throughput on any of {names} — give one of them")
        most = max(each.count for each in able)
        if job.scale > most:
            raise InputError(
                f"{job.name}: needs {job.scale} devices at the same time, and the types that can"
                f" run it have {most} at most — reduce its scale"
            )


@dataclass(frozen=True)
class ClusterState:
    """Jobs that are present at one moment, in the order of their arrivals.

    Attributes:
        jobs: the jobs.
        throughput: steps per second of each job on each type, [J, M].
        scale: devices of each job, [J].
        priority: weight of each job, [J].
        steps_left: steps that each job still has, [J].
        present_s: seconds since each job arrived, [J].
        isolated_s: seconds that the steps so far would have taken on an equal part of the cluster,
            [J].
        running: type on which each job runs, or -1, [J].
        counts: devices of each type, [M].
        prices: price of a device of each type for an hour, [M].
        types: name of each type.
        pairs: speeds of jobs that share a device.
    """

    jobs: tuple[ClusterJob, ...]
    throughput: FloatArray
    scale: IntArray
    priority: FloatArray
    steps_left: FloatArray
    present_s: FloatArray
    isolated_s: FloatArray
    running: IntArray
    counts: IntArray
    prices: FloatArray
    types: tuple[str, ...]
    pairs: PairSpeeds = field(default_factory=dict)

    @classmethod
    def at_start(
        cls,
        jobs: Sequence[ClusterJob],
        types: Sequence[DeviceType],
        pairs: PairSpeeds | None = None,
    ) -> ClusterState:
        """Return the state in which all jobs have just arrived."""
        zeros = np.zeros(len(jobs))
        return cls(
            jobs=tuple(jobs),
            throughput=build_throughput(jobs, types),
            scale=np.array([job.scale for job in jobs], dtype=np.int64),
            priority=np.array([job.priority for job in jobs], dtype=np.float64),
            steps_left=np.array([job.steps for job in jobs], dtype=np.float64),
            present_s=zeros,
            isolated_s=zeros,
            running=np.full(len(jobs), -1, dtype=np.int64),
            counts=np.array([each.count for each in types], dtype=np.int64),
            prices=np.array([each.price_per_hour for each in types], dtype=np.float64),
            types=tuple(each.name for each in types),
            pairs=pairs or {},
        )

    def find_pair(self, first: int, other: int, kind: int) -> tuple[float, float] | None:
        """Return the steps per second of two jobs on one device, or None if they share none."""
        labels = [self.jobs[each].kind or self.jobs[each].name for each in (first, other)]
        name = self.types[kind]
        if (both := self.pairs.get((labels[0], labels[1]), {}).get(name)) is not None:
            return both
        turned = self.pairs.get((labels[1], labels[0]), {}).get(name)
        return None if turned is None else turned[::-1]

    @property
    def proportional_throughput(self) -> FloatArray:
        """Return each job's speed if it has every type in proportion to its devices, [J]."""
        speeds: FloatArray = self.throughput @ self.counts / self.counts.sum()
        return speeds

    @property
    def isolated_throughput(self) -> FloatArray:
        """Return each job's speed on an equal part of the cluster, [J]."""
        part = np.minimum(1.0, self.counts.sum() / len(self.jobs) / self.scale)
        speeds: FloatArray = part * self.proportional_throughput
        return speeds


def build_throughput(jobs: Sequence[ClusterJob], types: Sequence[DeviceType]) -> FloatArray:
    """Return the steps per second of each job on each type, [J, M].

    A job that needs more devices than a type has cannot run there.
    """
    rows = [
        [job.throughput.get(each.name, 0.0) if job.scale <= each.count else 0.0 for each in types]
        for job in jobs
    ]
    return np.array(rows, dtype=np.float64).reshape(len(jobs), len(types))
