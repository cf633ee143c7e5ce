"""What a run of a scenario would do, as values, text and JSON; nothing is started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import SerializeAsAny

from laggard.core.emulated_drive import DriveLimits
from laggard.core.hosts import select_hosts
from laggard.core.run_schema import Record
from laggard.core.text_columns import align_columns
from laggard.layers_services.machine_description import MachineDescription
from laggard.network_emulation.compute.cpu_plan import plan_cpus, usable_cores
from laggard.network_emulation.dilation import compute_load
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
from laggard.scenario.load import Scenario
from laggard.workloads.validate import EVALUATIONS_TO_STOP

RESERVED_CORES = 0.5
"""Kept free for the link emulator, what holds the shares, the controller and the samplers."""

ASYNC_RESERVED_SHARE = 0.35
"""Of every core, kept free besides where workers go each at its own pace: none of them ever waits
for long, so that nothing of what is planned for them is left to those who exchange and evaluate
their models meanwhile."""


@dataclass(frozen=True)
class LocalMachine:
    """What a plan needs to know of the machine: the cores that may be used, and what would shape
    the links.
    """

    cores: tuple[int, ...]
    links: Literal["netem", "userspace"]
    reserved_cores: float = RESERVED_CORES

    @classmethod
    def detect(cls) -> LocalMachine:
        """This machine; tries netem in a network namespace that ends with the attempt."""
        return cls(usable_cores(), choose_backend("auto"))


class PlannedHost(Record):
    """One host: its share of one core (virtual), the core it would compute on, the ranks it
    carries, its drive's limits, its memory.
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
    """Alike ordered host pairs between two tiers, and what one flow alone should see there (virtual
    units).
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
    """One dynamic entry: when (virtual seconds, None where random or traced), on how many targets,
    what becomes of them.
    """

    at_s: float | None
    for_s: float | None
    when: str
    targets: str
    count: int
    change: str


class RunPlan(Record):
    """What `laggard plan` says."""

    scenario: str
    hosts: tuple[PlannedHost, ...]
    links: tuple[PlannedLink, ...]
    events: tuple[PlannedEvent, ...]
    model: str
    dataset: str
    strategy: str
    batch_size: int
    workers: int
    stop: str
    backend: Literal["netem", "userspace"]
    cores: int | None
    dilation: float
    cpu_shares: float
    usable_cores: float | None
    cpu_load: float | None = None
    workflow_plays: int
    warnings: tuple[str, ...]
    reservation: SerializeAsAny[MachineDescription] | None = None

    def to_json(self) -> str:
        """For machines."""
        return self.model_dump_json(indent=2)

    def text(self) -> str:
        """For people."""
        return "\n".join(self._format_lines())

    def _format_lines(self) -> Iterator[str]:
        yield f"{self.scenario}: {len(self.hosts)} hosts, {self.workers} workers"
        yield (
            f"  train {self.model} on {self.dataset}, {self.strategy}, batch {self.batch_size},"
            f" until {self.stop}"
        )
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
        yield from (f"warning: {warning}" for warning in self.warnings)

    def _format_local_machine(self) -> Iterator[str]:
        yield "here"
        yield (
            "  links shaped by"
            f" {'the kernel (netem)' if self.backend == 'netem' else 'the userspace emulator'}"
        )
        speed_text = (
            f"real time runs {self.dilation:.2f} times slower"
            if self.dilation > 1
            else "in real time"
        )
        usable = f"{self.usable_cores:g} of them for the hosts"
        shares = f"shares add up to {self.cpu_shares:g} cores of full speed"
        cache_note = "hosts that are held back compute with cold caches"
        load_text = (
            ""
            if self.cpu_load is None
            else f", for which up to {self.cpu_load:g} are needed: {cache_note}"
        )
        yield f"  {self.cores} cores, {usable}; {speed_text}"
        yield f"  {shares}{load_text}"


def count_reserved_cores(
    scenario: Scenario, cores: int, min_reserved: float = RESERVED_CORES
) -> float:
    """Cores of a machine that are not for hosts' shares."""
    return min_reserved + (
        ASYNC_RESERVED_SHARE * cores
        if scenario.workload.strategy.sync_mode == "asynchronous"
        else 0.0
    )


def plan_local_run(scenario: Scenario, machine: LocalMachine | None = None) -> RunPlan:
    """Describe a run.

    Args:
        scenario: a loaded scenario.
        machine: where it would run; this one when absent.

    Raises:
        InputError: the shares do not fit the machine.
    """
    machine = machine or LocalMachine.detect()
    reserved = count_reserved_cores(scenario, len(machine.cores), machine.reserved_cores)
    cpu = plan_cpus(scenario.peak_shares, machine.cores, reserved)
    return _create_run_plan(scenario, cpu.cpus).model_copy(
        update={
            "backend": machine.links,
            "cores": len(machine.cores),
            "dilation": round(cpu.dilation, 4),
            "usable_cores": len(machine.cores) - reserved,
            "cpu_load": round(
                sum(compute_load(share / cpu.dilation) for share in scenario.peak_shares.values()),
                4,
            ),
        }
    )


def plan_remote_run(
    scenario: Scenario, reservation: MachineDescription, addresses: Mapping[str, str]
) -> RunPlan:
    """Describe a run on machines of the hosts' own.

    Args:
        scenario: a loaded scenario.
        reservation: the machines.
        addresses: address of every host, by name; missing where it is not known yet.
    """
    run_plan = _create_run_plan(scenario, {})
    hosts = tuple(
        host.model_copy(update={"address": addresses.get(host.name, "")}) for host in run_plan.hosts
    )
    return run_plan.model_copy(update={"hosts": hosts, "reservation": reservation})


def _create_run_plan(scenario: Scenario, cpus: Mapping[str, int]) -> RunPlan:
    """What holds on every testbed, and netem in real time on machines of the hosts' own."""
    workload = scenario.workload
    return RunPlan(
        scenario=scenario.name,
        hosts=tuple(_list_hosts(scenario, cpus)),
        links=tuple(_list_links(scenario)),
        events=tuple(_plan_event(scenario, event) for event in scenario.heterogeneity.events),
        model=workload.model,
        dataset=workload.dataset.name,
        strategy=workload.strategy.describe(),
        batch_size=workload.batch_size,
        workers=len(scenario.ranks),
        stop=_format_stop(scenario),
        backend="netem",
        cores=None,
        dilation=1.0,
        cpu_shares=round(sum(scenario.peak_shares.values()), 4),
        usable_cores=None,
        workflow_plays=len(scenario.workflow.plays),
        warnings=scenario.warnings,
    )


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
        return "all the time"
    if isinstance(event, RandomHostEvent | RandomLinkEvent):
        scope = (
            "each host at moments of its own"
            if isinstance(event, RandomHostEvent)
            else "all links at once"
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
        return f"profile {event.profile}, up from {event.src}"
    return _format_values(event)


def _format_values(holder: HostEvent | LinkEvent | DriveLimits) -> str:
    """What an event sets, or a drive is limited to; a latency of nothing limits nothing."""
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


def _format_stop(scenario: Scenario) -> str:
    stop = scenario.workload.stop
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
