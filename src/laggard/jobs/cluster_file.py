"""Cluster file: devices, the policy that shares them, and the jobs.

types: {v100: {count: 8, price: 2.48}, p100: {count: 16, price: 1.46}}
round: 360s                     # a job may be preempted at the end of each round
policy: max_min_fairness
jobs:
  - {name: resnet, steps: 9000, scale: 2, arrival: 0s, throughput: {v100: 9.1, p100: 4.4}}
  - {name: mlp, steps: 9000, throughput: {v100: {1: 30, 2: 50}}}   # on one device, and on two
pairs:                          # jobs that may share one device, and the speeds of both
  - {jobs: [lstm, mlp], throughput: {v100: [20, 25]}}
teams: {vision: {weight: 2}, speech: {order: fifo}}            # for the policy hierarchical
# or the layers of a scenario folder instead of types, and the workloads of jobs:
# layers: my-continuum          # `prices: {edge: 0.05}` are those of its hosts for an hour
# jobs: [{name: digits, workload: digits.yaml, scale: 2}]
# or a trace instead of jobs, relative to this file:
# trace: jobs.trace             # Gavel's format, or CSV
# throughputs: throughputs.json # steps per second of each type of job, for Gavel's format
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from laggard.core.corrections.model_problems import validate_model
from laggard.core.errors import InputError
from laggard.core.files.input_files import read_bounded
from laggard.core.units import DurationS
from laggard.core.yaml_source import MAX_BYTES, parse_yaml
from laggard.jobs.job_trace import read_jobs
from laggard.workloads.scheduling.cluster_jobs import (
    ClusterJob,
    DeviceType,
    JobTeam,
    PairSpeeds,
    TeamOrder,
    require_jobs,
)
from laggard.workloads.scheduling.cluster_run import RoundOptions
from laggard.workloads.scheduling.device_sharing import is_superlinear
from laggard.workloads.scheduling.policy import Policy
from laggard.workloads.scheduling.registry import get_policy

OBJECTIVE_POLICIES = {"makespan": "makespan", "cost": "cost", "fairness": "max_min_fairness"}
"""Policy of each objective that a workload can have."""


class _ClusterModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _TypeEntry(_ClusterModel):
    count: int = Field(ge=1, le=1_000_000)
    price: float = Field(default=0.0, ge=0)


class _TeamEntry(_ClusterModel):
    weight: float = Field(default=1.0, gt=0)
    order: TeamOrder = TeamOrder.FAIRNESS


class _JobEntry(_ClusterModel):
    name: str = Field(min_length=1, max_length=200)
    steps: int | None = Field(default=None, ge=1)
    throughput: dict[str, float | dict[int, float]] = Field(default_factory=dict)
    workload: Path | None = None
    scale: int = Field(default=1, ge=1)
    arrival: DurationS = 0.0
    priority: float = Field(default=1.0, gt=0)
    team: str = ""
    kind: str = Field(default="", max_length=200)

    @model_validator(mode="after")
    def _require_speeds(self) -> _JobEntry:
        if not self.throughput and self.workload is None:
            raise ValueError(
                f"{self.name}: has neither a `throughput` nor a `workload` — give one of them"
            )
        if self.workload is None and self.steps is None:
            raise ValueError(f"{self.name}: has no `steps` — add them")
        for kind, curve in self.throughput.items():
            if isinstance(curve, dict) and self.scale not in curve:
                raise ValueError(
                    f"{self.name}: has no throughput on {self.scale} {kind}, which is its scale —"
                    " add it"
                )
        return self

    def to_job(self, here: Path, layers: Path | None, team: JobTeam) -> ClusterJob:
        """Return the job of a team; files are relative to a folder."""
        steps, curves = self.steps, self._list_curves()
        if self.workload is not None and layers is None:
            raise InputError(
                f"{self.name}: a `workload` trains on the `layers` of a scenario — add them, or"
                " remove it and give its `throughput`"
            )
        if self.workload is not None and layers is not None and not curves:
            from laggard.jobs.predicted_jobs import predict_curves

            curves, end = predict_curves(layers, here / self.workload, self.scale)
            steps = steps or end
        if steps is None:
            raise InputError(f"{self.name}: its workload has no stop.steps — give `steps`")
        return ClusterJob(
            self.name,
            steps,
            {kind: curve[self.scale] for kind, curve in curves.items()},
            self.scale,
            self.arrival,
            self.priority,
            curves,
            self.kind,
            team,
        )

    def _list_curves(self) -> Mapping[str, Mapping[int, float]]:
        return {
            kind: each if isinstance(each, dict) else {self.scale: each}
            for kind, each in self.throughput.items()
        }


class _PairEntry(_ClusterModel):
    jobs: tuple[str, str]
    throughput: dict[str, tuple[Annotated[float, Field(ge=0)], Annotated[float, Field(ge=0)]]] = (
        Field(min_length=1)
    )


class ClusterFile(_ClusterModel):
    """Content of a cluster file.

    Attributes:
        types: number and price per hour of the devices of each type.
        layers: scenario folder whose layers are the types, instead of `types`.
        prices: price of a host of each of these layers for an hour.
        round_s: seconds of a round.
        allocation_s: least seconds between two allocations.
        preemption_s: seconds that a job loses when it starts or moves.
        policy: name of the policy; `max_min_fairness` if there is neither it nor an objective.
        objective: what the policy optimizes, instead of its name, as in a workload.
        jobs: jobs in the order of their arrivals.
        pairs: kinds of jobs that may share one device, and the steps per second of both, by type.
        teams: weight of each team, and how its jobs share its part; none if no job has a team.
        trace: file of jobs, instead of `jobs`.
        throughputs: file of steps per second by type of job, for a trace in Gavel's format.
    """

    types: dict[str, _TypeEntry] = Field(default_factory=dict)
    layers: Path | None = None
    prices: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    round_s: DurationS = Field(default=360.0, alias="round")
    allocation_s: DurationS = Field(default=1920.0, alias="reallocate")
    preemption_s: DurationS = Field(default=0.0, alias="preemption")
    policy: str | None = None
    objective: Literal["makespan", "cost", "fairness"] | None = None
    jobs: tuple[_JobEntry, ...] = ()
    pairs: tuple[_PairEntry, ...] = ()
    teams: dict[str, _TeamEntry] = Field(default_factory=dict)
    trace: Path | None = None
    throughputs: Path | None = None

    @model_validator(mode="after")
    def _require_jobs(self) -> ClusterFile:
        if bool(self.types) == (self.layers is not None):
            raise ValueError("a cluster has either `types` or `layers` — give one of them")
        if self.prices and self.layers is None:
            raise ValueError("`prices` are those of `layers` — write `price` beside `count`")
        if bool(self.jobs) == (self.trace is not None):
            raise ValueError("a cluster has either `jobs` or a `trace` — give one of them")
        if self.throughputs is not None and self.trace is None:
            raise ValueError(
                "`throughputs` are those of a `trace`, and there is none — remove them"
            )
        known = {job.kind or job.name for job in self.jobs}
        for name in (name for pair in self.pairs for name in pair.jobs):
            if name not in known:
                raise ValueError(
                    f"`pairs`: {name} is not the kind of a job, which is its name if it has no"
                    f" `kind` — name two of {', '.join(sorted(known))}"
                )
        return self

    @model_validator(mode="after")
    def _require_one_aim(self) -> ClusterFile:
        if self.policy is not None and self.objective is not None:
            raise ValueError("a cluster has either a `policy` or an `objective` — give one of them")
        return self

    @property
    def policy_name(self) -> str:
        """Return the name of the policy."""
        return self.policy or OBJECTIVE_POLICIES[self.objective or "fairness"]

    @model_validator(mode="after")
    def _require_teams(self) -> ClusterFile:
        for job in self.jobs:
            if bool(self.teams) != bool(job.team) or (job.team and job.team not in self.teams):
                known = ", ".join(self.teams) or "none"
                raise ValueError(
                    f"{job.name}: its team is {job.team or 'missing'}, and `teams` has {known} —"
                    " give all jobs one of them, or none"
                )
        return self

    def get_team(self, job: _JobEntry) -> JobTeam:
        """Return the team of a job; that of all jobs if there are none."""
        if not job.team:
            return JobTeam()
        entry = self.teams[job.team]
        return JobTeam(job.team, entry.weight, entry.order)


@dataclass(frozen=True)
class SharedCluster:
    """Cluster and its jobs.

    Attributes:
        name: name of the file, without its suffix.
        types: types of devices.
        jobs: jobs in the order of their arrivals.
        policy: policy of the file.
        options: its rounds.
        pairs: speeds of jobs that share a device.
        notes: sentences about what is unusual in the jobs.
        layers: scenario folder whose layers are the types; None if types are given.
        workloads: workload file of each job; None for a job whose throughput is given.
    """

    name: str
    types: tuple[DeviceType, ...]
    jobs: tuple[ClusterJob, ...]
    policy: Policy
    options: RoundOptions
    pairs: PairSpeeds = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    layers: Path | None = None
    workloads: tuple[Path | None, ...] = ()


def load_cluster(path: Path) -> SharedCluster:
    """Read a cluster file.

    Raises:
        InputError: a file is missing, or is not what it should be, or a job cannot run.
        ScenarioError: the cluster file is wrong at a certain line.
    """
    content = validate_model(parse_yaml(read_bounded(path, MAX_BYTES), str(path)), ClusterFile)
    here = path.absolute().parent
    layers = None if content.layers is None else here / content.layers
    types = _list_types(content, layers)
    if content.trace is None:
        jobs = tuple(each.to_job(here, layers, content.get_team(each)) for each in content.jobs)
        pairs: PairSpeeds = {each.jobs: each.throughput for each in content.pairs}
    else:
        throughputs = content.throughputs and here / content.throughputs
        found = read_jobs(here / content.trace, throughputs, [each.name for each in types])
        jobs, pairs = found.jobs, found.pairs
    require_jobs(jobs, types)
    options = RoundOptions(content.round_s, content.allocation_s, content.preemption_s)
    return SharedCluster(
        path.stem,
        types,
        jobs,
        get_policy(content.policy_name),
        options,
        pairs,
        (*_list_notes(jobs, types), *_list_predicted(content.jobs)),
        layers,
        tuple(each.workload and here / each.workload for each in content.jobs),
    )


def _list_types(content: ClusterFile, layers: Path | None) -> tuple[DeviceType, ...]:
    if layers is None:
        given = content.types.items()
        return tuple(DeviceType(name, each.count, each.price) for name, each in given)
    from laggard.jobs.predicted_jobs import read_layers

    return read_layers(layers, content.prices)


def _list_notes(jobs: tuple[ClusterJob, ...], types: tuple[DeviceType, ...]) -> list[str]:
    notes = []
    single = [job.name for job in jobs if all(len(job.get_curve(each.name)) == 1 for each in types)]
    if 0 < len(single) < len(jobs):
        more = f" and {len(single) - 1} more" * (len(single) > 1)
        notes.append(f"{single[0]}{more} can have one number of devices only")
    for each in types:
        unable = sum(job.throughput.get(each.name, 0.0) <= 0 for job in jobs)
        if unable:
            notes.append(f"{unable} of {len(jobs)} jobs cannot run on {each.name}")
        faster = [job.name for job in jobs if is_superlinear(job.get_curve(each.name))]
        if faster:
            more = f" and {len(faster) - 1} more" * (len(faster) > 1)
            notes.append(
                f"on {each.name}, {faster[0]}{more} gain more speed than devices, which is kept as"
                " measured"
            )
    return notes


def _list_predicted(entries: Sequence[_JobEntry]) -> Iterator[str]:
    predicted = [each.name for each in entries if not each.throughput]
    if predicted:
        yield (f"the throughput of {', '.join(predicted)} is predicted from steps on this machine")
