"""Parts of a reservation on Grid'5000, as values."""

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
"""Job type that allows deployment of another system on the nodes."""

NetworkKind = Literal["prod", "kavlan", "kavlan-global"]

# Up to four digits of hours: E2Clab's schema ends at 23, but OAR accepts jobs of several days.
_WALLTIME = re.compile(r"(\d{2,4}):([0-5]\d):([0-5]\d)", re.ASCII)
_JOB = re.compile(r"(?:([a-z]+):)?([1-9]\d{0,9})", re.ASCII)


@dataclass(frozen=True)
class G5kOptions:
    """Command-line options of a reservation, which take precedence over the scenario.

    Attributes:
        walltime: `HH:MM:SS`; may exceed a day, such as `62:00:00`
        reservation: start of the reservation, `YYYY-MM-DD HH:MM:SS` in Paris time
        queue: OAR queue
        project: project to charge, for users who have several
        job_types: additional OAR job types
        env_name: Kadeploy environment; implies the job type `deploy`
        kavlan: True to place the nodes in a VLAN of their own, which spans all sites of the
            reservation
        jobs: running jobs to use instead of a new reservation, `ID` or `SITE:ID`, one per site
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
    """Alike machines for one service, or for the part of its servers in one cluster.

    Attributes:
        hosts: names of the hosts that the machines take the place of, in order
        roles: EnOSlib roles of all the machines, besides each one's own name
        site: site of the machines
        cluster: cluster of the machines
        servers: full names, in the order of `hosts`; empty if any node of the cluster is
            acceptable
        network: id of the network of their first interface
        at: location of the service in the file
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
        """Return the number of machines."""
        return len(self.hosts)


@dataclass(frozen=True)
class PlannedNetwork:
    """Network of the reservation; a global VLAN is created at one site and spans all sites."""

    id: str
    kind: NetworkKind
    site: str
    roles: tuple[str, ...]


@dataclass(frozen=True)
class JobReference:
    """Reference to an existing job."""

    site: str
    job_id: int

    def __str__(self) -> str:
        return f"{self.site}:{self.job_id}"


@dataclass(frozen=True)
class G5kPlan:
    """Planned reservation, or requirements for an existing one.

    Attributes:
        groups: groups of machines, in the order of the hosts
        networks: one network per site, or one VLAN
        job_types: OAR job types
        queue: OAR queue
        walltime: length of the reservation, `HH:MM:SS`
        reservation: start of the reservation in Paris time; None means as soon as possible
        env_name: environment to deploy; None keeps the nodes' standard system
        project: project to charge
        key: public key file for deployed nodes; None installs every public key of the user
        monitor: kwollect metrics to enable
        reused: existing jobs to use instead of a new reservation
        warnings: settings of the scenario that Laggard does not apply
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
        """Return the sites in the order of their first machine."""
        return tuple(dict.fromkeys(group.site for group in self.groups))

    @property
    def nodes(self) -> int:
        """Return the number of machines of all sites."""
        return sum(group.nodes for group in self.groups)

    @property
    def walltime_s(self) -> int:
        """Return the length of the reservation in seconds."""
        return seconds_of(self.walltime)

    @property
    def node_hours(self) -> float:
        """Return the number of machines times the length in hours."""
        return self.nodes * self.walltime_s / 3600

    @property
    def start(self) -> datetime | None:
        """Return the start of the reservation with its time zone; None is as soon as possible."""
        if self.reservation is None:
            return None
        return datetime.strptime(self.reservation, DATE).replace(tzinfo=ZoneInfo(ZONE))

    @property
    def deployed(self) -> bool:
        """Return whether a system is deployed on the nodes."""
        return DEPLOY in self.job_types

    def uses(self, reference: Reference | None = None) -> tuple[ClusterUse, ...]:
        """Return the usage of each cluster, in the order of first use."""
        known = (reference or shipped()).by_name
        taken: Counter[str] = Counter()
        for group in self.groups:
            taken[group.cluster] += group.nodes
        return tuple(
            ClusterUse(c, n, known[c].nodes, known[c].longest_s(n)) for c, n in taken.items()
        )


@dataclass(frozen=True)
class Settings:
    """Settings of the whole reservation before their validation."""

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
    """Service, or copy of one, with its hosts and its location in the file."""

    service: Service
    hosts: tuple[Host, ...]
    at: KeyPath


def placed_services(layers: LayersServices) -> Iterator[Placed]:
    """Yield every service and copy with its hosts, in E2Clab's order."""
    by_service: dict[tuple[int, int], list[Host]] = {}
    for host in compile_hosts(layers):
        by_service.setdefault((host.layer_id, host.service_id), []).append(host)
    for i, layer in enumerate(layers.layers):
        # A copy made by `repeat` is the same object as its original, so it has the same location.
        numbers = {id(service): j for j, service in enumerate(layer.services)}
        for service_id, service in enumerate(expand_repeated_services(layer), 1):
            at = ("layers", i, "services", numbers[id(service)])
            yield Placed(service, tuple(by_service[i + 1, service_id]), at)


def seconds_of(walltime: str) -> int:
    """Return the seconds of `HH:MM:SS`; 0 if the text is not a walltime."""
    found = _WALLTIME.fullmatch(walltime)
    return 3600 * int(found[1]) + 60 * int(found[2]) + int(found[3]) if found else 0


def parse_job(text: str) -> tuple[str, int] | None:
    """Return site and number of `ID` or `SITE:ID`; None if the text has neither form.

    The site is empty for `ID`.
    """
    found = _JOB.fullmatch(text)
    return (found[1] or "", int(found[2])) if found else None
