"""Description of a run as values, text and JSON, before anything is started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import SerializeAsAny

from laggard.core.emulated_drive import DriveLimits
from laggard.core.hosts import select_hosts
from laggard.core.run_schema import Record
from laggard.core.text.text_columns import align_columns
from laggard.layers_services.e2clab.program import PlannedProgram, list_program
from laggard.layers_services.machine_description import MachineDescription
from laggard.network_emulation.compute.cpu_plan import plan_cpus, usable_cores
from laggard.network_emulation.jitter import Distribution
from laggard.network_emulation.links.plan_links import Constraint, tier_pairs
from laggard.network_emulation.model import (
    HostEvent,
    LinkEvent,
    RandomHostEvent,
    RandomLinkEvent,
    TimedHostEvent,
    TimedLinkEvent,
    TraceEvent,
)
from laggard.network_emulation.probe import choose_backend
from laggard.scenario.bring_up import estimate_bring_up
from laggard.scenario.load import Scenario
from laggard.workloads.specification.stream import describe_stream
from laggard.workloads.validate import EVALUATIONS_TO_STOP
from laggard.workloads.workload import Workload

RESERVED_CORES = 0.5
"""Cores reserved for the link emulator, the share controller, the controller and the samplers."""

ASYNC_RESERVED_SHARE = 0.35
"""Fraction of every core that is additionally reserved for asynchronous strategies.

Asynchronous workers never wait for long, so they use all the CPU time that is planned for them.
The processes that exchange and evaluate their models meanwhile need CPU time of their own.
"""


@dataclass(frozen=True)
class LocalMachine:
    """Properties of this machine that a plan needs.

    Attributes:
        cores: usable cores.
        links: backend that would shape the links.
        reserved_cores: number of cores that are not for hosts.
    """

    cores: tuple[int, ...]
    links: Literal["netem", "userspace"]
    reserved_cores: float = RESERVED_CORES

    @classmethod
    def detect(cls) -> LocalMachine:
        """Detect this machine's properties.

        It tries netem in a temporary network namespace.
        """
        return cls(usable_cores(), choose_backend("auto"))


class PlannedHost(Record):
    """One host of a planned run.

    Attributes:
        name: name of the host.
        layer: tier of the host.
        address: IPv4 address.
        cpu_share: virtual share of one core.
        core: core that it would compute on.
        ranks: ranks on this host.
        storage: limits of its drive as text; empty for none.
        memory_bytes: memory limit; None for none.
    """

    name: str
    layer: str
    address: str
    cpu_share: float
    core: int | None
    ranks: tuple[int, ...]
    storage: str = ""
    memory_bytes: int | None = None


class PlannedLink(Record):
    """Ordered host pairs of two tiers with the same constraints.

    The values are those that one flow alone should experience, in virtual units.
    """

    src_layer: str
    dst_layer: str
    pairs: int
    delay_ms: float
    jitter_ms: float
    rate_mbps: float | None
    loss_percent: float
    distribution: Distribution
    burst_packets: float


class PlannedEvent(Record):
    """One entry of `dynamic`.

    Attributes:
        at_s: beginning in virtual seconds; None for random and traced entries.
        for_s: duration in virtual seconds; None for random and traced entries.
        when: times as text.
        targets: affected hosts or links as text.
        count: number of affected hosts or links.
        change: new values as text.
    """

    at_s: float | None
    for_s: float | None
    when: str
    targets: str
    count: int
    change: str


class RunPlan(Record):
    """Output of `laggard plan`; what belongs to a training is None if nothing is trained."""

    scenario: str
    hosts: tuple[PlannedHost, ...]
    links: tuple[PlannedLink, ...]
    events: tuple[PlannedEvent, ...]
    model: str | None = None
    dataset: str | None = None
    strategy: str | None = None
    batch_size: int | None = None
    stream: str | None = None
    workers: int
    stop: str | None = None
    backend: Literal["netem", "userspace"]
    cores: int | None
    dilation: float
    cpu_shares: float
    usable_cores: float | None
    cpu_load: float | None = None
    bring_up_s: float | None = None
    workflow_plays: int
    program: PlannedProgram = PlannedProgram()
    warnings: tuple[str, ...]
    reservation: SerializeAsAny[MachineDescription] | None = None

    def to_json(self) -> str:
        """Return the plan as JSON."""
        return self.model_dump_json(indent=2)

    def text(self) -> str:
        """Return the plan as text for people."""
        return "\n".join(self._format_lines())

    def _format_lines(self) -> Iterator[str]:
        yield f"{self.scenario}: {len(self.hosts)} hosts, {self.workers} workers"
        if self.workers:
            what = f"train {self.model} on {self.dataset}, {self.strategy}, batch {self.batch_size}"
            yield f"  {what}, until {self.stop}"
            if self.stream is not None:
                yield f"  {self.stream}"
        else:
            yield "  no training: the plays of workflow.yaml are the experiment"
        yield from _format_table("hosts", [_format_host(host) for host in self.hosts])
        yield from _format_table("links, one way", [_format_link(link) for link in self.links])
        yield from _format_table(
            "events", [(event.when, event.targets, event.change) for event in self.events]
        )
        if self.reservation is not None:
            yield from self.reservation.format_lines()
        if self.cores is not None:
            yield from self._format_local_machine()
        if self.workflow_plays:
            yield f"  {self.workflow_plays} plays of workflow.yaml"
        yield from self.program.format_lines()
        yield from (f"warning: {warning}" for warning in self.warnings)

    def _format_local_machine(self) -> Iterator[str]:
        yield "this machine"
        yield (
            "  links shaped by"
            f" {'the kernel (netem)' if self.backend == 'netem' else 'the userspace emulator'}"
        )
        speed_text = (
            f"the emulation runs {self.dilation:.2f} times slower than real time"
            if self.dilation > 1
            else "the emulation runs in real time"
        )
        usable = f"{self.usable_cores:g} of them for the hosts"
        shares = f"CPU shares add up to {self.cpu_shares:g} cores at full speed"
        cache_note = "limited hosts compute with cold caches"
        load_text = (
            ""
            if self.cpu_load is None
            else f", which need up to {self.cpu_load:g} cores, because {cache_note}"
        )
        yield f"  {self.cores} cores, {usable}; {speed_text}"
        yield f"  {shares}{load_text}"
        if self.bring_up_s is not None:
            first = "the first training step begins" if self.workers else "the first play begins"
            yield (
                f"  {first} after about {self.bring_up_s:.0f} s if no other"
                " program uses the machine; links and shares are verified by then"
            )


def count_reserved_cores(
    scenario: Scenario, cores: int, min_reserved: float = RESERVED_CORES
) -> float:
    """Return the number of a machine's cores that are not available to hosts."""
    return min_reserved + (
        ASYNC_RESERVED_SHARE * cores
        if scenario.trains and scenario.workload.strategy.sync_mode == "asynchronous"
        else 0.0
    )


def plan_local_run(scenario: Scenario, machine: LocalMachine | None = None) -> RunPlan:
    """Describe a run on this machine.

    Args:
        scenario: a loaded scenario.
        machine: machine of the run; this one if None.

    Raises:
        InputError: the shares do not fit the machine.
    """
    machine = machine or LocalMachine.detect()
    reserved = count_reserved_cores(scenario, len(machine.cores), machine.reserved_cores)
    kind, shares = scenario.share_kind, scenario.peak_shares
    cpu = plan_cpus(shares, machine.cores, reserved, kind=kind)
    return _create_run_plan(scenario, cpu.cpus, own_machines=False).model_copy(
        update={
            "backend": machine.links,
            "cores": len(machine.cores),
            "dilation": round(cpu.dilation, 4),
            # `dilation` is rounded for readers only; the load is computed from the exact value.
            "usable_cores": len(machine.cores) - reserved,
            "bring_up_s": round(estimate_bring_up(scenario, cpu).total_s, 1),
            "cpu_load": round(
                sum(kind.compute_load(each / cpu.dilation) for each in shares.values()), 4
            ),
        }
    )


def plan_remote_run(
    scenario: Scenario, reservation: MachineDescription, addresses: Mapping[str, str]
) -> RunPlan:
    """Describe a run in which each host is a machine of its own.

    Args:
        scenario: a loaded scenario.
        reservation: description of the machines.
        addresses: address of every host by name; hosts whose address is not known yet are missing.
    """
    run_plan = _create_run_plan(scenario, {}, own_machines=True)
    hosts = tuple(
        host.model_copy(update={"address": addresses.get(host.name, "")}) for host in run_plan.hosts
    )
    warnings = (*run_plan.warnings, *find_unlimited_programs(scenario))
    return run_plan.model_copy(
        update={"hosts": hosts, "reservation": reservation, "warnings": warnings}
    )


def find_unlimited_programs(scenario: Scenario) -> tuple[str, ...]:
    """Return a warning about limits that do not hold for programs of plays on real machines.

    There a CPU share, a drive or a memory limit holds for the workers of a training only.
    """
    shares = {host for host, share in scenario.peak_shares.items() if share < 1}
    limited = sorted(shares | scenario.memory.keys() | scenario.drives.keys())
    if scenario.trains or not limited:
        return ()
    more = f" and {len(limited) - 3} more hosts" if len(limited) > 3 else ""
    message = (
        f"{', '.join(limited[:3])}{more}: on real machines, heterogeneity.yaml limits the workers"
        " of a training, and the programs of plays are not limited — run with --on local, or"
        " choose slower machines"
    )
    return (message,)


def _create_run_plan(scenario: Scenario, cpus: Mapping[str, int], *, own_machines: bool) -> RunPlan:
    """Create the part of the plan that is the same on every testbed.

    The other fields are set for netem in real time on machines of the hosts' own.
    """
    run_plan = RunPlan(
        scenario=scenario.name,
        hosts=tuple(_list_hosts(scenario, cpus)),
        links=tuple(_list_links(scenario)),
        events=tuple(_plan_event(scenario, event) for event in scenario.heterogeneity.events),
        workers=len(scenario.ranks),
        backend="netem",
        cores=None,
        dilation=1.0,
        cpu_shares=round(sum(scenario.peak_shares.values()), 4),
        usable_cores=None,
        workflow_plays=len(scenario.workflow.plays),
        program=list_program(
            scenario.layers,
            scenario.sources.layers_services,
            scenario.sources.workflow,
            own_machines=own_machines,
        ),
        warnings=scenario.warnings,
    )
    if not scenario.trains:
        return run_plan
    workload = scenario.workload
    training = {
        "model": workload.model,
        "dataset": workload.dataset.name,
        "strategy": workload.strategy.describe(),
        "batch_size": workload.batch_size,
        "stream": describe_stream(workload.stream, workload.rehearsal),
        "stop": _format_stop(workload),
    }
    return run_plan.model_copy(update=training)


def _list_hosts(scenario: Scenario, cpus: Mapping[str, int]) -> Iterator[PlannedHost]:
    for host in scenario.hosts:
        yield PlannedHost(
            name=host.name,
            layer=host.layer,
            address=host.address,
            cpu_share=scenario.shares[host.name],
            core=cpus.get(host.name),
            ranks=tuple(
                rank for rank, placed in enumerate(scenario.ranks) if placed.name == host.name
            ),
            memory_bytes=scenario.memory.get(host.name),
            storage=_format_values(scenario.drives[host.name])
            if host.name in scenario.drives
            else "",
        )


def _list_links(scenario: Scenario) -> Iterator[PlannedLink]:
    for tier in tier_pairs(scenario.links):
        expected: Constraint = tier.constraint
        yield PlannedLink(
            src_layer=tier.src_layer,
            dst_layer=tier.dst_layer,
            pairs=len(tier.pairs),
            delay_ms=expected.delay_ms,
            jitter_ms=expected.jitter_ms,
            rate_mbps=expected.rate_mbps,
            loss_percent=expected.loss_percent,
            distribution=expected.distribution,
            burst_packets=expected.burst_packets,
        )


def _plan_event(scenario: Scenario, event: HostEvent | LinkEvent) -> PlannedEvent:
    """Describe one entry of `dynamic`, with the number of hosts or links that it affects."""
    timed = event if isinstance(event, TimedHostEvent | TimedLinkEvent) else None
    if isinstance(event, TimedHostEvent | RandomHostEvent):
        targets, count = event.hosts, len(select_hosts(event.hosts, scenario.hosts))
    else:
        ends = [
            {host.name for host in select_hosts(end, scenario.hosts)}
            for end in (event.src, event.dst)
        ]
        pairs = {(src, dst) for src in ends[0] for dst in ends[1] if src != dst}
        pairs |= {(dst, src) for src, dst in pairs} if event.both_ways else set()
        targets, count = f"{event.src} {'and' if event.both_ways else 'to'} {event.dst}", len(pairs)
    return PlannedEvent(
        at_s=timed.at_s if timed else None,
        for_s=timed.for_s if timed else None,
        when=_format_time(event),
        targets=targets,
        count=count,
        change=_format_change(event),
    )


def _format_time(event: HostEvent | LinkEvent) -> str:
    if isinstance(event, TraceEvent):
        return "throughout the run"
    if isinstance(event, RandomHostEvent | RandomLinkEvent):
        scope = (
            "at different times on each host"
            if isinstance(event, RandomHostEvent)
            else "at the same time on all links"
        )
        return (
            f"for {event.random.for_s:g} s in every {event.random.every_s:g} s, {scope} (seed"
            f" {event.random.seed})"
        )
    return f"at {event.at_s:g} s for {event.for_s:g} s"


_QUANTITIES = (
    ("cpu", "cpu", "%", 100.0),
    ("delay_ms", "delay", " ms", 1.0),
    ("rate_mbps", "rate", " Mbit/s", 1.0),
    ("loss_percent", "loss", " %", 1.0),
    ("jitter_ms", "jitter", " ms", 1.0),
    ("read_mb_per_s", "read", " MB/s", 1.0),
    ("write_mb_per_s", "write", " MB/s", 1.0),
    ("read_latency_ms", "read latency", " ms", 1.0),
    ("write_latency_ms", "write latency", " ms", 1.0),
)


def _format_change(event: HostEvent | LinkEvent) -> str:
    if isinstance(event, TraceEvent):
        return f"as in {Path(event.trace).name}"
    if isinstance(event, TimedLinkEvent | RandomLinkEvent) and event.profile is not None:
        return f"profile {event.profile}, uplink from {event.src}"
    if isinstance(event, TimedLinkEvent | RandomLinkEvent) and event.down:
        return "down"
    return _format_values(event)


def _format_values(holder: HostEvent | LinkEvent | DriveLimits) -> str:
    """Format the values of an event or the limits of a drive.

    A drive's latency of 0 is left out, because it limits nothing.
    """
    values = [
        (name, unit, scale, getattr(holder, attribute, None))
        for attribute, name, unit, scale in _QUANTITIES
    ]
    limits = isinstance(holder, DriveLimits)
    shown = [
        (name, unit, scale * value) for name, unit, scale, value in values if value is not None
    ]
    return ", ".join(
        f"{name} {value:g}{unit}" for name, unit, value in shown if value or not limits
    )


def _format_stop(workload: Workload) -> str:
    stop = workload.stop
    parts = [
        (
            f"accuracy {stop.accuracy:g} in {EVALUATIONS_TO_STOP} evaluations in a row"
            if stop.accuracy is not None
            else ""
        ),
        f"{stop.steps} steps" if stop.steps is not None else "",
        f"{stop.time_s:g} s" if stop.time_s is not None else "",
    ]
    return " or ".join(part for part in parts if part)


def _format_host(host: PlannedHost) -> tuple[str, ...]:
    ranks = f"rank {', '.join(map(str, host.ranks))}" if host.ranks else "no worker"
    core = "" if host.core is None else f"core {host.core}"
    memory = "" if host.memory_bytes is None else f"{host.memory_bytes / 2**20:.0f} MiB"
    return (
        host.name,
        host.address,
        f"{100 * host.cpu_share:g}% of a core",
        core,
        ranks,
        memory,
        host.storage,
    )


def _format_link(link: PlannedLink) -> tuple[str, ...]:
    jitter = f" ± {link.jitter_ms:g}" if link.jitter_ms else ""
    distribution_text = (
        f" ({link.distribution})" if link.jitter_ms and link.distribution != "uniform" else ""
    )
    rate = "unlimited" if link.rate_mbps is None else f"{link.rate_mbps:g} Mbit/s"
    bursts = f" in bursts of {link.burst_packets:g}" if link.burst_packets > 1 else ""
    loss = f"{link.loss_percent:g} % loss{bursts}" if link.loss_percent else ""
    return (
        f"{link.src_layer} to {link.dst_layer}",
        f"{link.pairs} pair{'s' * (link.pairs > 1)}",
        f"{link.delay_ms:g}{jitter} ms{distribution_text}",
        rate,
        loss,
    )


def _format_table(title: str, rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if not rows:
        return
    yield title
    yield from align_columns(rows)
