"""What a reservation on Grid'5000 is made of, as values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal
from zoneinfo import ZoneInfo

from laggard.core.errors import Problem
from laggard.core.hosts import Host
from laggard.core.yaml_source import KeyPath
from laggard.layers_services.compile import compile_hosts, expand_repeated_services
from laggard.layers_services.g5k.reference import Reference
from laggard.layers_services.g5k.reference import load_reference as shipped
from laggard.layers_services.g5k.usage_rules import DATE, ZONE, ClusterUse, Queue
from laggard.layers_services.model import G5k, LayersServices, Service

DEPLOY = "deploy"
"""The job type that lets another system be put on the nodes."""

NetworkKind = Literal["prod", "kavlan", "kavlan-global"]

_WALLTIME = re.compile(r"(\d{2,4}):([0-5]\d):([0-5]\d)", re.ASCII)
_JOB = re.compile(r"(?:([a-z]+):)?([1-9]\d{0,9})", re.ASCII)


@dataclass(frozen=True)
class G5kOptions:
    """What the command line says of a reservation; it goes before what the scenario says.

    Attributes:
        walltime: `HH:MM:SS`, also of more than a day, such as `62:00:00`.
        reservation: when it begins, `YYYY-MM-DD HH:MM:SS` in Paris.
        queue: OAR queue.
        project: whose it is, for users of several.
        job_types: further OAR job types.
        env_name: Kadeploy environment; implies the job type `deploy`.
        kavlan: put the nodes into a VLAN of their own, which reaches over all sites where there are
            several.
        jobs: running reservations to use instead of making one, `ID` or `SITE:ID`, one for each
            site.
    """

    walltime: str | None = None
    reservation: str | None = None
    queue: str | None = None
    project: str | None = None
    job_types: tuple[str, ...] = ()
    env_name: str | None = None
    kavlan: bool = False
    jobs: tuple[str, ...] = ()


@dataclass(frozen=True)
class MachineGroup:
    """Alike machines that one service, or one cluster's part of its servers, runs on.

    Attributes:
        hosts: names of the hosts that they are, in order.
        roles: EnOSlib roles that all of them answer to, besides each one's own name.
        site: where they are.
        cluster: of which cluster.
        servers: full names, in the order of `hosts`; empty where any node of the cluster will do.
        network: id of the network that their first interface is on.
        at: where the service is written.
    """

    hosts: tuple[str, ...]
    roles: tuple[str, ...]
    site: str
    cluster: str
    servers: tuple[str, ...] = ()
    network: str = ""
    at: KeyPath = ()

    @property
    def nodes(self) -> int:
        """How many machines."""
        return len(self.hosts)


@dataclass(frozen=True)
class PlannedNetwork:
    """A network of the reservation; a global VLAN is made at one site and reaches all."""

    id: str
    kind: NetworkKind
    site: str
    roles: tuple[str, ...]


@dataclass(frozen=True)
class JobReference:
    """A reservation that is already there."""

    site: str
    job_id: int

    def __str__(self) -> str:
        return f"{self.site}:{self.job_id}"


@dataclass(frozen=True)
class G5kPlan:
    """A reservation, or what is asked of one that is already there.

    Attributes:
        groups: machines, in the order of the hosts.
        networks: one per site, or one VLAN.
        job_types: OAR's.
        queue: OAR's.
        walltime: `HH:MM:SS`.
        reservation: when it begins, in Paris; None: as soon as possible.
        env_name: what is deployed; None leaves the nodes their standard system.
        project: whose it is.
        key: public key file for deployed nodes; None: every public key of the user.
        monitor: kwollect metrics to be switched on.
        reused: reservations to use instead of making one.
        warnings: what the scenario says and Laggard does not do.
    """

    groups: tuple[MachineGroup, ...]
    networks: tuple[PlannedNetwork, ...]
    job_types: tuple[str, ...]
    queue: Queue
    walltime: str
    reservation: str | None = None
    env_name: str | None = None
    project: str | None = None
    key: str | None = None
    monitor: str | None = None
    reused: tuple[JobReference, ...] = ()
    warnings: tuple[Problem, ...] = field(default=())

    @property
    def sites(self) -> tuple[str, ...]:
        """Sites in the order of their first machine."""
        return tuple(dict.fromkeys(group.site for group in self.groups))

    @property
    def nodes(self) -> int:
        """Machines of all sites."""
        return sum(group.nodes for group in self.groups)

    @property
    def walltime_s(self) -> int:
        """Length of the reservation in seconds."""
        return seconds_of(self.walltime)

    @property
    def node_hours(self) -> float:
        """Machines times length, in hours."""
        return self.nodes * self.walltime_s / 3600

    @property
    def start(self) -> datetime | None:
        """When it begins, with its time zone; None: as soon as possible."""
        if self.reservation is None:
            return None
        return datetime.strptime(self.reservation, DATE).replace(tzinfo=ZoneInfo(ZONE))

    @property
    def deployed(self) -> bool:
        """Whether the nodes get a system of their own."""
        return DEPLOY in self.job_types

    def uses(self, reference: Reference | None = None) -> tuple[ClusterUse, ...]:
        """What it takes of each cluster, in the order of first use."""
        known = (reference or shipped()).by_name
        taken: Counter[str] = Counter()
        for group in self.groups:
            taken[group.cluster] += group.nodes
        return tuple(
            ClusterUse(c, n, known[c].nodes, known[c].longest_s(n)) for c, n in taken.items()
        )


@dataclass(frozen=True)
class Settings:
    """What holds for the whole reservation, before it is checked."""

    g5k: G5k
    cluster: str | None
    cluster_at: KeyPath
    walltime: str
    reservation: str | None
    queue: str
    job_types: tuple[str, ...]
    env_name: str | None
    kavlan: bool


@dataclass(frozen=True)
class Placed:
    """One service (or copy of it) with its hosts and where it is written."""

    service: Service
    hosts: tuple[Host, ...]
    at: KeyPath


def placed_services(layers: LayersServices) -> Iterator[Placed]:
    """Every service and copy, with its hosts, in E2Clab's order."""
    by_service: dict[tuple[int, int], list[Host]] = {}
    for host in compile_hosts(layers):
        by_service.setdefault((host.layer_id, host.service_id), []).append(host)
    for i, layer in enumerate(layers.layers):
        numbers = {id(service): j for j, service in enumerate(layer.services)}
        for service_id, service in enumerate(expand_repeated_services(layer), 1):
            at = ("layers", i, "services", numbers[id(service)])
            yield Placed(service, tuple(by_service[i + 1, service_id]), at)


def seconds_of(walltime: str) -> int:
    """`HH:MM:SS` in seconds; 0 where it is no walltime."""
    found = _WALLTIME.fullmatch(walltime)
    return 3600 * int(found[1]) + 60 * int(found[2]) + int(found[3]) if found else 0


def parse_job(text: str) -> tuple[str, int] | None:
    """Site (empty where none is written) and number of `ID` or `SITE:ID`; None where it is
    neither.
    """
    found = _JOB.fullmatch(text)
    return (found[1] or "", int(found[2])) if found else None
