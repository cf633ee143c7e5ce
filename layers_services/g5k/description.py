"""Description of a planned reservation for `laggard plan --on g5k`, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from laggard.core.errors import LaggardError
from laggard.core.run_schema import Record
from laggard.core.text.text_columns import align_columns
from laggard.layers_services.g5k.api import Pace, retry_listing
from laggard.layers_services.g5k.configuration import build_conf, client_is_ready
from laggard.layers_services.g5k.reference import Cluster, Hardware, Reference, parse_server
from laggard.layers_services.g5k.reference import load_reference as shipped
from laggard.layers_services.g5k.request import G5kPlan, MachineGroup
from laggard.layers_services.g5k.reserve import FIRST_SLOT_S
from laggard.layers_services.g5k.usage_rules import (
    DATE,
    NOT_MODELLED,
    ZONE,
    UsageFinding,
    check_usage,
)
from laggard.layers_services.machine_description import MachineDescription
from laggard.layers_services.ssh.host_keys import RESERVATION_RULE

ESTIMATE_HORIZON_S = 3 * 24 * 3600

_NETWORKS = {
    "prod": "production network",
    "kavlan": "a VLAN of its own",
    "kavlan-global": "one VLAN over all sites",
}


class PlannedMachines(Record):
    """Machines of one cluster that serve one service."""

    site: str
    cluster: str
    nodes: int
    servers: tuple[str, ...]
    hosts: tuple[str, ...]
    roles: tuple[str, ...]
    hardware: str


class G5kDescription(MachineDescription):
    """Planned reservation."""

    machines: tuple[PlannedMachines, ...]
    nodes: int
    walltime: str
    node_hours: float
    queue: str
    job_types: tuple[str, ...]
    project: str | None
    env_name: str | None
    network: str
    reservation: str | None
    jobs: tuple[str, ...]
    allowed: bool
    usage: tuple[UsageFinding, ...]
    not_modelled: tuple[str, ...]
    start: str
    host_keys: str
    warnings: tuple[str, ...]
    reference_date: str

    def format_lines(self) -> Iterator[str]:
        """Yield the reservation and the verdict of the usage policy, line by line."""
        sites = list(dict.fromkeys(machines.site for machines in self.machines))
        places = f"{len(sites)} sites" if len(sites) > 1 else sites[0]
        yield (
            f"Grid'5000, {places}: {_format_count(self.nodes, 'node')} for {self.walltime},"
            f" {self.node_hours:g} node-hours"
        )
        yield from align_columns([_format_row(machines) for machines in self.machines])
        yield f"  {self._job()}"
        if not self.jobs:
            yield f"usage policy: {'allowed' if self.allowed else 'not allowed'}"
            yield from (f"  {'ok' if finding.ok else 'NO'}  {finding}" for finding in self.usage)
            yield (
                f"  not checked: {'; '.join(self.not_modelled)}; run `usagepolicycheck -t` on a"
                " frontend for a complete check"
            )
        if self.start:
            yield f"start: {self.start}"
        yield f"host keys of the nodes: {self.host_keys}"
        yield from (f"warning: {warning}" for warning in self.warnings)
        yield f"clusters as of {self.reference_date}; nothing has been reserved"

    def _job(self) -> str:
        if self.jobs:
            return f"existing jobs: {' and '.join(self.jobs)}, which keep running afterwards"
        parts = (
            f"{self.queue} queue",
            f"job types {', '.join(self.job_types)}" if self.job_types else "no job type",
            f"deploys {self.env_name}" if self.env_name else "standard system of the nodes",
            self.network,
            f"project {self.project}" if self.project else "",
            f"starts at {self.reservation}" if self.reservation else "starts as soon as possible",
        )
        return "; ".join(part for part in parts if part)


def describe_g5k(
    plan: G5kPlan, submitted: datetime, start: str = "", reference: Reference | None = None
) -> G5kDescription:
    """Describe a planned reservation.

    Args:
        plan: the reservation
        submitted: time of the submission, with a time zone
        start: start according to the testbed's schedule, if it was queried
        reference: clusters of the testbed; by default the data that this version ships
    """
    known = reference or shipped()
    findings = check_usage(plan.uses(known), plan.queue, plan.walltime_s, submitted, plan.start)
    return G5kDescription(
        machines=tuple(
            _build_planned_machines(group, known.by_name[group.cluster]) for group in plan.groups
        ),
        nodes=plan.nodes,
        walltime=plan.walltime,
        node_hours=round(plan.node_hours, 2),
        queue=plan.queue,
        job_types=plan.job_types,
        project=plan.project,
        env_name=plan.env_name,
        network=_NETWORKS[plan.networks[0].kind],
        reservation=plan.reservation,
        jobs=tuple(str(job) for job in plan.reused),
        allowed=all(finding.ok for finding in findings),
        usage=findings,
        not_modelled=NOT_MODELLED,
        start=start,
        host_keys=RESERVATION_RULE,
        warnings=tuple(str(warning) for warning in plan.warnings),
        reference_date=known.date,
    )


def _build_planned_machines(group: MachineGroup, cluster: Cluster) -> PlannedMachines:
    return PlannedMachines(
        site=group.site,
        cluster=group.cluster,
        nodes=group.nodes,
        servers=group.servers,
        hosts=group.hosts,
        roles=group.roles,
        hardware=_describe_hardware(group, cluster),
    )


def _describe_hardware(group: MachineGroup, cluster: Cluster) -> str:
    """Describe the nodes of a group: the named ones, or else all kinds of nodes of the cluster."""
    named = [parsed[1] for server in group.servers if (parsed := parse_server(server)) is not None]
    kinds = cluster.hardware_of(named) if named else cluster.hardware
    meter = ", metered" if cluster.power_meter else ""
    if len(kinds) == 1:
        return format_hardware(kinds[0]) + meter
    return "; ".join(
        f"{cluster.name}-{{{kind.numbers}}}: {format_hardware(kind)}{meter}" for kind in kinds
    )


def format_hardware(hardware: Hardware) -> str:
    """Format the hardware of a node on one line."""
    fabrics = (("InfiniBand", hardware.infiniband_gbps), ("Omni-Path", hardware.omnipath_gbps))
    parts = (
        f"{hardware.cores} cores",
        f"{hardware.memory_gib} GiB",
        *(f"{gpus.count} x {gpus.model}" for gpus in hardware.gpus),
        f"{hardware.ethernet_gbps:g} Gbit/s",
        *(f"{kind} {rate:g} Gbit/s" for kind, rate in fabrics if rate),
        hardware.architecture,
    )
    return ", ".join(parts)


def _format_row(machines: PlannedMachines) -> tuple[str, ...]:
    short = [server.partition(".")[0] for server in machines.servers]
    what = ", ".join(short) if short else machines.cluster
    hosts = (
        machines.hosts[0]
        if machines.nodes == 1
        else f"{machines.hosts[0]} to {machines.hosts[-1].rpartition('.')[2]}"
    )
    return machines.site, what, _format_count(machines.nodes, "node"), hosts, machines.hardware


def _format_count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


@dataclass(frozen=True)
class StartEstimate:
    """Estimated start of a reservation by the testbed's current schedule.

    `start` is None if it is unknown, for `reason`.
    """

    start: datetime | None
    reason: str


def start_estimate(
    plan: G5kPlan, now: datetime, horizon_s: int = ESTIMATE_HORIZON_S, pace: Pace | None = None
) -> StartEstimate:
    """Estimate the start of a plan from the clusters' schedules, without a reservation.

    Args:
        plan: the reservation plan
        now: current time with a time zone; the search begins one minute later
        horizon_s: length of the searched period in seconds
        pace: timeouts and retries; by default one quick attempt
    """
    pace = pace or Pace(request_timeout_s=10.0, attempts=1)
    start = int((plan.start or now + timedelta(seconds=FIRST_SLOT_S)).timestamp())
    # A given date is tested as it is; otherwise the first free slot of the horizon is searched.
    window = 0 if plan.start else horizon_s
    try:
        client_is_ready(pace)
        slot = retry_listing(
            lambda: _free_slot(plan, start, window), "the clusters' schedules", pace
        )
    except LaggardError as error:
        return StartEstimate(None, str(error))
    if slot is not None:
        moment = datetime.fromtimestamp(slot, ZoneInfo(ZONE))
        return StartEstimate(
            moment, f"these nodes are free from {moment.strftime(DATE)} on (current schedule)"
        )
    if plan.start:
        return StartEstimate(
            None, f"these nodes are not free on {plan.reservation} for {plan.walltime}"
        )
    return StartEstimate(
        None, f"these nodes are not free for {plan.walltime} within {horizon_s / 3600:g} hours"
    )


def _free_slot(plan: G5kPlan, start: int, window: int) -> int | None:
    import enoslib
    from enoslib.errors import NoSlotError
    from enoslib.infra.providers import find_slot

    provider = enoslib.G5k(build_conf(plan, "laggard-plan"))
    try:
        return int(find_slot([provider], window, start))
    except NoSlotError:
        return None
