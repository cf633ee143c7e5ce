"""Compilation of a link plan to commands, per host through EnOSlib's objects and for the fabric.

Pure: nothing is run here. The fabric is the bridge of a local run. There, a host's downlink is the
queue of its port, and a shared bottleneck is an ifb device to which the ports of its senders
redirect. Between real machines there is no fabric: downlinks and shared bottlenecks are on the
hosts themselves, as far as possible (`end_host_shaping`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from enoslib.objects import Host as EnosHost
from enoslib.objects import Network as EnosNetwork

from laggard.core.errors import EmulationError
from laggard.core.hosts import Host
from laggard.network_emulation.link_plan import QUEUE_PACKETS, Constraint, LinkPlan, Pair
from laggard.network_emulation.links.end_host_shaping import (
    impossible_links,
    plan_inlets,
    plan_outlets,
)
from laggard.network_emulation.links.netem.detours import (
    Detours,
    list_detoured_pairs,
    plan_detours,
)
from laggard.network_emulation.links.netem.filters import ipv6_filter, match_ipv6
from laggard.network_emulation.links.netem.htb import (
    IPV6_PRIORITY,
    ROOT,
    UPLINK_CLASS,
    LinkConstraint,
    LinkSource,
    ShapedLinks,
    SharedClass,
    as_batch,
    burst_bytes,
    guaranteed_mbps,
    jitter_texts,
    limit_packets,
    loss_text,
    rate_text,
)
from laggard.network_emulation.links.netem.ingress_queue import (
    DEVICE_PREFIX,
    Command,
    IngressQueue,
    IngressShaper,
)
from laggard.network_emulation.loss_bursts import compute_gilbert_probabilities

MAX_HOSTS = 9_900
"""Largest number of hosts: tc reads a class number as hexadecimal digits, up to 4 of them."""
SEGMENT_BELOW_MBPS = 1_000.0
"""Rate up to which a device hands packets over one by one."""
_FIRST_NUMBER = 11
"""First class number of a destination; the root, uplink and default classes use smaller ones."""


@dataclass(frozen=True)
class LinkProgram:
    """Commands of a link plan, and where to run them.

    Attributes:
        plan: the plan in real units; every pair with a class of its own has a constraint in it.
        base_delays_ms: one-way delay of the testbed itself, by pair; it is subtracted from the
            pair's delay; a missing pair has 0.
        numbers: class number of each destination, the same on every host.
        hosts: every host by its name, with its addresses.
        fan_out: number of constrained links that leave each host.
        links: EnOSlib's service with the constraints of every host.
        sources: the same constraints by host name.
        intakes: ingress shaper of each host, if there is no fabric.
        detours: detours of each host's packets, if there is no fabric.
        fabric_devices: lines of one `ip -batch -` on the fabric.
        fabric_queues: lines of one `tc -batch -` on the fabric.
        plain: True if the links only ever have rates, which needs no netem.
    """

    plan: LinkPlan
    base_delays_ms: Mapping[Pair, float]
    numbers: Mapping[str, int]
    hosts: Mapping[str, Host]
    fan_out: Mapping[str, int]
    links: ShapedLinks
    sources: Mapping[str, LinkSource]
    intakes: Mapping[str, IngressShaper]
    detours: Mapping[str, Detours]
    fabric_devices: tuple[str, ...]
    fabric_queues: tuple[str, ...]
    plain: bool = False

    def in_tc_terms(self, pair: Pair, constraint: Constraint) -> LinkConstraint:
        """Return the constraint of one ordered pair as EnOSlib's extended object.

        Raises:
            EmulationError: if the pair is not in the plan, or its delay is below the testbed's
                own.
        """
        src, dst = pair
        if src not in self.sources or dst not in self.numbers:
            raise EmulationError(
                f"{src} to {dst} is not a link of this continuum; an event can change only a link"
                " of the plan"
            )
        source = self.sources[src]
        shared = next((each for each in source.shared if dst in each.receivers), None)
        limits = (constraint.rate_mbps, source.uplink_mbps, shared.rate_mbps if shared else None)
        # A class may not exceed its parents, so its ceiling is the slowest limit on the host.
        rate_mbps = min((limit for limit in limits if limit is not None), default=None)
        parent, guaranteed = ROOT, ""
        if shared is not None and rate_mbps is not None:
            parent, guaranteed = (
                shared.class_id,
                rate_text(min(shared.guaranteed_mbps / len(shared.receivers), rate_mbps)),
            )
        elif source.uplink_mbps is not None and rate_mbps is not None:
            share_mbps = guaranteed_mbps(source.uplink_mbps, self.fan_out[src])
            parent, guaranteed = UPLINK_CLASS, rate_text(min(share_mbps, rate_mbps))
        delay, jitter, distribution = jitter_texts(
            self._emulated_ms(pair, constraint.delay_ms), constraint
        )
        return LinkConstraint(
            device=source.device,
            target=self.hosts[dst].address,
            targets6=self.hosts[dst].ipv6,
            delay=delay,
            rate=rate_text(rate_mbps),
            loss=loss_text(constraint.loss_percent),
            number=self.numbers[dst],
            jitter=jitter,
            distribution=distribution,
            limit=limit_packets(constraint),
            bursts=compute_gilbert_probabilities(
                constraint.loss_percent / 100, constraint.burst_packets
            ),
            burst=burst_bytes(rate_mbps),
            parent=parent,
            guaranteed=guaranteed,
            plain=self.plain,
        )

    def removals(self) -> Mapping[str, tuple[Command, ...]]:
        """Return the commands that remove each host's queues, filters and devices, by host."""
        roots = {
            name: ("tc", "qdisc", "del", "dev", source.device, "root")
            for name, source in self.sources.items()
        }
        return {
            host.name: (
                *([roots[host.name]] if host.name in roots else []),
                *(self.intakes[host.name].removals() if host.name in self.intakes else ()),
            )
            for host in self.plan.hosts
            if host.name in roots or host.name in self.intakes
        }

    def _emulated_ms(self, pair: Pair, delay_ms: float) -> float:
        base_ms = self.base_delays_ms.get(pair, 0.0)
        if 0 < delay_ms < base_ms:
            rule = (
                f"the requested end-to-end delay is shorter than the {base_ms:.3g} ms that this"
                " testbed itself takes one way"
            )
            raise EmulationError(
                f"{pair[0]} to {pair[1]}, {delay_ms:g} ms: {rule}; request at least that delay"
            )
        return max(0.0, delay_ms - base_ms)


def compile_links(
    plan: LinkPlan,
    roles: Mapping[str, Sequence[EnosHost]],
    networks: Sequence[EnosNetwork] | None,
    ports: Mapping[str, str] | None,
    base_delays_ms: Mapping[Pair, float] | None = None,
    *,
    plain: bool = False,
    unshaped_port: int = 0,
) -> LinkProgram:
    """Compile a plan in real units to commands.

    Args:
        plan: all links.
        roles: EnOSlib's roles; hosts are found by their addresses.
        networks: EnOSlib's networks to consider; None for all.
        ports: fabric-side device of each host, for downlinks and shared links; None if the hosts
            apply those themselves.
        base_delays_ms: one-way delay of the testbed itself, by pair, to subtract.
        plain: True for kernels without netem: plain queues are used, which support rates only.
        unshaped_port: UDP port whose datagrams pass unshaped; 0 for none.

    Raises:
        EmulationError: if a host is missing from the roles, a delay is below the testbed's own, a
            port is missing, a shared link cannot be placed on the hosts, or a `plain` plan
            contains more than rates.
    """
    if plain:
        _require_only_rates(plan)
    if len(plan.hosts) > MAX_HOSTS:
        raise EmulationError(
            f"the plan has {len(plan.hosts)} hosts, but the netem backend supports at most"
            f" {MAX_HOSTS}; use fewer hosts"
        )
    devices, queues = _plan_fabric(plan, ports) if ports is not None else ((), ())
    deployed = _Deployed(_by_address(roles, networks), networks)
    shared, intakes = ({}, {}) if ports is not None else _on_hosts(plan, deployed, unshaped_port)
    detours = {} if ports is not None else _plan_detours(plan, deployed)
    detoured = {} if ports is not None else list_detoured_pairs(plan)
    plan = replace(plan, pairs=_with_classes(plan, shared, detoured))
    program = LinkProgram(
        plan=plan,
        base_delays_ms=base_delays_ms or {},
        numbers={host.name: _FIRST_NUMBER + i for i, host in enumerate(plan.hosts)},
        hosts={host.name: host for host in plan.hosts},
        fan_out=Counter(src for src, _ in plan.pairs),
        links=ShapedLinks(),
        sources=_plan_sources(plan, deployed, shared, detours, unshaped_port),
        intakes=intakes,
        detours=detours,
        fabric_devices=devices,
        fabric_queues=queues,
        plain=plain,
    )
    program.links.sources = {source.host: source for source in program.sources.values()}
    for pair, constraint in plan.pairs.items():
        program.sources[pair[0]].add_constraints([program.in_tc_terms(pair, constraint)])
    return program


def _require_only_rates(plan: LinkPlan) -> None:
    for (src, dst), constraint in plan.pairs.items():
        if not constraint.only_rate:
            rule = "a delay, jitter or loss needs netem, which the kernels of these nodes lack"
            raise EmulationError(
                f"{src} to {dst}: {rule}; load the module sch_netem on the nodes, or use rates only"
            )


@dataclass(frozen=True)
class _Deployed:
    """EnOSlib's hosts by their addresses, and the networks to consider."""

    by_address: Mapping[str, EnosHost]
    networks: Sequence[EnosNetwork] | None

    def find(self, host: Host) -> tuple[EnosHost, str]:
        """Return EnOSlib's object of a host and its network device."""
        found = self.by_address.get(host.address)
        devices = (
            [] if found is None else found.filter_interfaces(self.networks, include_unknown=False)
        )
        if found is None or not devices:
            raise EmulationError(
                f"{host.name}: no deployed host has its address {host.address or '(none)'}"
            )
        return found, str(devices[0])


def _by_address(
    roles: Mapping[str, Sequence[EnosHost]], networks: Sequence[EnosNetwork] | None
) -> Mapping[str, EnosHost]:
    return {
        str(address.ip.ip): host
        for group in roles.values()
        for host in group
        for address in host.filter_addresses(networks, include_unknown=False)
        if address.ip is not None
    }


def _plan_detours(plan: LinkPlan, deployed: _Deployed) -> Mapping[str, Detours]:
    needed = {host for pair in list_detoured_pairs(plan).items() for host in (*pair[0], pair[1])}
    devices = {host.name: deployed.find(host)[1] for host in plan.hosts if host.name in needed}
    return plan_detours(plan, devices)


def _with_classes(
    plan: LinkPlan,
    shared: Mapping[str, Sequence[SharedClass]],
    detoured: Mapping[Pair, str],
) -> Mapping[Pair, Constraint]:
    """Return the constraints of the plan, and a neutral one for pairs with only a shared class.

    Packets on a detour are also counted where they leave.
    """
    only = {pair: Constraint() for pair in detoured} | {
        (src, dst): Constraint()
        for src, classes in shared.items()
        for each in classes
        for dst in each.receivers
    }
    return {**only, **plan.pairs}


def _plan_sources(
    plan: LinkPlan,
    deployed: _Deployed,
    shared: Mapping[str, tuple[SharedClass, ...]],
    detours: Mapping[str, Detours],
    unshaped_port: int,
) -> dict[str, LinkSource]:
    """Return a source without constraints for every host that sends through one.

    Hosts with an uplink have one too.
    """
    sending = {src for src, _ in plan.pairs} | {
        name for name, link in plan.access.items() if link.up_mbps is not None
    }
    return {
        host.name: replace(
            _plan_source(plan, host, deployed),
            shared=shared.get(host.name, ()),
            forwarded=detours[host.name].forwarded if host.name in detours else (),
            unshaped_port=unshaped_port,
        )
        for host in plan.hosts
        if host.name in sending
    }


def _plan_source(plan: LinkPlan, host: Host, deployed: _Deployed) -> LinkSource:
    enos_host, device = deployed.find(host)
    access = plan.access.get(host.name)
    rates = [plan.expected(host.name, dst).rate_mbps for src, dst in plan.pairs if src == host.name]
    lossy = any(
        constraint.loss_percent for (src, _), constraint in plan.pairs.items() if src == host.name
    )
    # A batch of 64 KiB takes 0.5 ms at 1 Gbit/s; above that rate, lossless links keep batches.
    slow = any(rate is None or rate <= SEGMENT_BELOW_MBPS for rate in rates)
    uplink_mbps = access.up_mbps if access else None
    return LinkSource(
        enos_host,
        device=device,
        uplink_mbps=uplink_mbps,
        segment=lossy or slow or (uplink_mbps or SEGMENT_BELOW_MBPS) < SEGMENT_BELOW_MBPS,
    )


def _on_hosts(
    plan: LinkPlan, deployed: _Deployed, unshaped_port: int
) -> tuple[dict[str, tuple[SharedClass, ...]], dict[str, IngressShaper]]:
    """Return egress classes and ingress shapers of hosts, for networks without a fabric."""
    for name, reason in impossible_links(plan).items():
        raise EmulationError(
            f"{name} of heterogeneity.yaml: {reason}; remove the entry, or run with --on local"
        )
    return _shared_classes(plan), _plan_ingress_shapers(plan, deployed, unshaped_port)


def _shared_classes(plan: LinkPlan) -> dict[str, tuple[SharedClass, ...]]:
    outlets = plan_outlets(plan)
    leaving = {(outlet.host, dst) for outlet in outlets for dst in outlet.receivers} | set(
        plan.pairs
    )
    classes: dict[str, tuple[SharedClass, ...]] = {}
    for outlet in outlets:
        access = plan.access.get(outlet.host)
        rate_mbps = guaranteed = outlet.rate_mbps
        if access is not None and access.up_mbps is not None:
            links = sum(src == outlet.host for src, _ in leaving)
            rate_mbps = min(rate_mbps, access.up_mbps)
            guaranteed = min(
                rate_mbps, len(outlet.receivers) * guaranteed_mbps(access.up_mbps, links)
            )
        earlier = classes.get(outlet.host, ())
        each = SharedClass(len(earlier), rate_mbps, guaranteed, frozenset(outlet.receivers))
        classes[outlet.host] = (*earlier, each)
    return classes


def _plan_ingress_shapers(
    plan: LinkPlan, deployed: _Deployed, unshaped_port: int
) -> dict[str, IngressShaper]:
    hosts = {host.name: host for host in plan.hosts}
    queues: dict[str, tuple[IngressQueue, ...]] = {}
    for inlet in plan_inlets(plan):
        earlier = queues.get(inlet.host, ())
        senders = {name: (hosts[name].address, *hosts[name].ipv6) for name in inlet.senders}
        queues[inlet.host] = (
            *earlier,
            IngressQueue(f"{DEVICE_PREFIX}{len(earlier)}", inlet.rate_mbps, senders),
        )
    return {
        name: IngressShaper(deployed.find(hosts[name])[1], some, unshaped_port)
        for name, some in queues.items()
    }


def _plan_fabric(
    plan: LinkPlan, ports: Mapping[str, str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return device and queue commands of downlinks and shared links on the fabric.

    Nothing there changes during a run, so netem's own rate can serialize.
    """
    devices: list[str] = []
    queues: list[str] = []
    for name, access in plan.access.items():
        if access.down_mbps is not None:
            queues.append(_build_bottleneck_command(_get_port(name, ports), access.down_mbps))
    hosts = {host.name: host for host in plan.hosts}
    redirecting: set[str] = set()
    for i, link in enumerate(plan.shared):
        device = f"shared{i}"
        devices += [
            f"link add {device} type ifb",
            f"link set {device} txqueuelen {QUEUE_PACKETS} up",
        ]
        queues.append(_build_bottleneck_command(device, link.rate_mbps))
        for src, dst in sorted(link.pairs):
            port = _get_port(src, ports)
            # A port has one ingress queue for all its redirections.
            if port not in redirecting:
                queues.append(f"tc qdisc add dev {port} ingress")
                redirecting.add(port)
            redirect = f"action mirred egress redirect dev {device}"
            queues.append(
                f"tc filter add dev {port} parent ffff: protocol ip u32 match ip dst"
                f" {hosts[dst].address} {redirect}"
            )
            add = ipv6_filter(port, "ffff:", IPV6_PRIORITY)
            queues += [
                f"{add} {match_ipv6('dst', address)} {redirect}" for address in hosts[dst].ipv6
            ]
    return tuple(devices), as_batch(queues)


def _build_bottleneck_command(device: str, rate_mbps: float) -> str:
    return (
        f"tc qdisc replace dev {device} root handle {ROOT} netem rate {rate_text(rate_mbps)} limit"
        f" {QUEUE_PACKETS}"
    )


def _get_port(host: str, ports: Mapping[str, str]) -> str:
    if host not in ports:
        fix = "use `links: userspace`, or remove downlinks and shared links from the scenario"
        raise EmulationError(
            f"{host}: downlinks and shared links need the host's port on the fabric, which is"
            f" unknown; {fix}"
        )
    return ports[host]
