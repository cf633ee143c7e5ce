"""The jobs of a stand-in Grid'5000: what a submission asks for, and what becomes of it over time.

    waiting -> tolaunch -> launching -> running -> error (deleted, or the walltime is over)

States, their spelling and what ends in which are those of OAR 2.5 as the Grid'5000 API shows them
(grid5000/g5k-api, lib/oar/job.rb). Everything here is values in, values out: the time is an
argument, in seconds since the epoch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal
from zoneinfo import ZoneInfo

TIMEZONE = ZoneInfo("Europe/Paris")
State = Literal["waiting", "tolaunch", "launching", "running", "error"]
ENDED: tuple[State, ...] = ("error",)

_CLUSTER = re.compile(
    r"\{(?:\(type='default' or type='disk'\) AND )?cluster='([a-z0-9]+)'\}/nodes=(\d+)"
)
_SERVERS = re.compile(
    r"\{(?:\(type='default' or type='disk'\) AND )?network_address in \(([^)]*)\)\}/nodes=(\d+)"
)
_VLAN = re.compile(r"\{type='(kavlan(?:-local|-global)?)'\}/vlan=(\d+)")
_SUBNET = re.compile(r"slash_(\d+)=(\d+)")
_WALLTIME = re.compile(r"(\d+)(?::(\d+))?(?::(\d+))?")


class RefusedError(Exception):
    """A submission that OAR refuses, with what it says."""


@dataclass(frozen=True)
class NodesWanted:
    """So many nodes out of a cluster, or of the servers that are named."""

    count: int
    cluster: str = ""
    servers: tuple[str, ...] = ()

    def fits(self, name: str) -> bool:
        """Whether a node is of the kind asked for."""
        return name in self.servers if self.servers else name.partition("-")[0] == self.cluster


@dataclass(frozen=True)
class Request:
    """A resource request of OAR: groups of nodes, types of VLANs, number of /22 subnets, walltime
    in seconds."""

    nodes: tuple[NodesWanted, ...]
    vlans: tuple[str, ...]
    subnets: int
    walltime_s: int


@dataclass(frozen=True)
class Timing:
    """How long the stages of jobs and deployments take, in seconds.

    Attributes:
        waiting_s: before the scheduler looks at a job.
        to_launch_s: in `tolaunch`.
        launching_s: in `launching`.
        killing_s: from a deletion to the end.
        deploying_s: of a deployment, on top of the real time that the nodes take to come up.
        honours_reservations: whether jobs for a later date wait for it; otherwise they start as if
            it had come.
    """

    waiting_s: float = 0.7
    to_launch_s: float = 0.2
    launching_s: float = 0.3
    killing_s: float = 0.3
    deploying_s: float = 0.5
    honours_reservations: bool = False


@dataclass
class Job:
    """A submitted job; `starts_at`, `killed_at` and the like are seconds since the epoch, None
    while it is open.

    `starts_at` is when it leaves `waiting`; `ends_at` when it is over, once that is decided.
    """

    uid: int
    site: str
    user: str
    name: str
    types: tuple[str, ...]
    queue: str
    project: str
    command: str
    request: Request
    submitted_at: float
    reservation: float | None = None
    nodes: tuple[str, ...] = ()
    vlans: tuple[str, ...] = ()
    subnets: tuple[str, ...] = ()
    starts_at: float | None = None
    ends_at: float | None = None
    events: list[tuple[float, str, str]] = field(default_factory=list)

    def runs_at(self, timing: Timing) -> float | None:
        """When it reaches `running`."""
        return (
            None
            if self.starts_at is None
            else self.starts_at + timing.to_launch_s + timing.launching_s
        )

    def state(self, now: float, timing: Timing) -> State:
        """Where it is in its life."""
        if self.ends_at is not None and now >= self.ends_at:
            return "error"
        if self.starts_at is None or now < self.starts_at:
            return "waiting"
        since = now - self.starts_at
        if since < timing.to_launch_s:
            return "tolaunch"
        return "launching" if since < timing.to_launch_s + timing.launching_s else "running"

    def note(self, now: float, kind: str, description: str) -> None:
        """Add to what OAR tells about the job."""
        self.events.append((now, kind, description))


def parse_request(text: str) -> Request:
    """The resources that a submission asks for, as EnOSlib writes them.

    Raises:
        RefusedError: nothing that this stand-in understands.
    """
    resources, _, walltime = text.partition(",walltime=")
    nodes: list[NodesWanted] = []
    vlans: list[str] = []
    subnets = 0
    for part in resources.split("+"):
        if found := _CLUSTER.fullmatch(part):
            nodes.append(NodesWanted(int(found[2]), cluster=found[1]))
        elif found := _SERVERS.fullmatch(part):
            nodes.append(
                NodesWanted(int(found[2]), servers=tuple(re.findall(r"'([^']+)'", found[1])))
            )
        elif found := _VLAN.fullmatch(part):
            vlans += [found[1]] * int(found[2])
        elif found := _SUBNET.fullmatch(part):
            subnets += int(found[2]) * 2 ** (22 - int(found[1]))
        else:
            raise RefusedError(f"Bad resource request: {part!r}")
    return Request(tuple(nodes), tuple(vlans), subnets, parse_walltime(walltime))


def parse_walltime(text: str) -> int:
    """`hours[:minutes[:seconds]]` in seconds; OAR's default of an hour where nothing is said.

    Raises:
        RefusedError: another notation.
    """
    if not text:
        return 3600
    found = _WALLTIME.fullmatch(text)
    if found is None:
        raise RefusedError(f"Bad walltime: {text!r}")
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return hours * 3600 + minutes * 60 + seconds


def parse_date(text: str) -> float:
    """A reservation date, which Grid'5000 takes as French time or as seconds since the epoch.

    Raises:
        RefusedError: another notation.
    """
    if text.isdigit():
        return float(text)
    try:
        return datetime.strptime(text, "%Y-%m-%d %H:%M:%S").replace(tzinfo=TIMEZONE).timestamp()
    except ValueError as error:
        raise RefusedError(f"Bad reservation date: {text!r}") from error


def date_of(seconds: float) -> str:
    """Seconds since the epoch as OAR writes dates."""
    return datetime.fromtimestamp(seconds, TIMEZONE).strftime("%Y-%m-%d %H:%M:%S")


def allocate(wanted: Sequence[NodesWanted], free: Iterable[str]) -> tuple[str, ...] | None:
    """Nodes for all groups, servers by name first, out of the free ones in their order; None where
    they do not suffice."""
    left = list(free)
    chosen: list[str] = []
    for group in sorted(wanted, key=lambda each: not each.servers):
        fitting = [name for name in left if group.fits(name)][: group.count]
        if len(fitting) < group.count:
            return None
        chosen += fitting
        left = [name for name in left if name not in fitting]
    return tuple(chosen)


def vlan_numbers(
    kinds: Sequence[str], known: Iterable[str], taken: Iterable[str]
) -> tuple[str, ...] | None:
    """Numbers of free VLANs of the kinds asked for; None where they do not suffice."""
    free = [number for number in sorted(known, key=int) if number not in set(taken)]
    chosen: list[str] = []
    for kind in kinds:
        fitting = [number for number in free if vlan_kind(number) == kind and number not in chosen]
        if not fitting:
            return None
        chosen.append(fitting[0])
    return tuple(chosen)


def vlan_kind(number: str) -> str:
    """Local VLANs are 1 to 3, routed ones 4 to 9, global ones above, everywhere on Grid'5000."""
    if int(number) <= 3:
        return "kavlan-local"
    return "kavlan" if int(number) <= 9 else "kavlan-global"


def as_json(job: Job, now: float, timing: Timing, *, resources: bool) -> Mapping[str, object]:
    """A job as the API shows it; the lists of what it holds only where asked for, and nothing that
    is unknown yet."""
    state = job.state(now, timing)
    started = job.runs_at(timing)
    shown: dict[str, object] = {
        "uid": job.uid,
        "user_uid": job.user,
        "user": job.user,
        "walltime": job.request.walltime_s,
        "queue": job.queue,
        "state": state,
        "project": job.project,
        "name": job.name,
        "types": list(job.types),
        "mode": "PASSIVE",
        "command": job.command,
        "submitted_at": int(job.submitted_at),
        "scheduled_at": None if job.starts_at is None else int(job.starts_at),
        "started_at": int(started) if started is not None and started <= now else 0,
        "stopped_at": int(job.ends_at) if state in ENDED and job.ends_at is not None else None,
        "message": (
            f"R={sum(group.count for group in job.request.nodes)},W={job.request.walltime_s},J=B,N={job.name}"
        ),
        "properties": "maintenance = 'NO'",
        "directory": f"/home/{job.user}",
        "events": [
            {"uid": number, "created_at": int(at), "type": kind, "description": text}
            for number, (at, kind, text) in enumerate(job.events, 1)
        ],
        "links": [
            {"rel": "self", "href": f"/sites/{job.site}/jobs/{job.uid}", "type": "application/json"}
        ],
    }
    if resources:
        held = job.starts_at is not None
        kinds = {
            "cores": [f"{name}/0" for name in job.nodes],
            "vlans": list(job.vlans),
            "subnets": list(job.subnets),
        }
        shown["resources_by_type"] = {
            kind: names for kind, names in kinds.items() if names and held
        }
        shown["assigned_nodes"] = list(job.nodes) if held else []
    return {key: value for key, value in shown.items() if value is not None}
