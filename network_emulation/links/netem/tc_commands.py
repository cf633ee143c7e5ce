"""A link plan as the commands that make it so: per host through EnOSlib's objects, and on the
fabric between the hosts.

Pure: nothing is run here. On the fabric, which is the bridge of a local run, a host's downlink is
the queue of its port, and a shared bottleneck is an ifb device that the ports of its senders
redirect to. Without a fabric, between real machines, downlinks and shared bottlenecks are on the
hosts themselves, as far as they can be (`without_fabric`).
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
SEGMENT_BELOW_MBPS = 1_000.0
_FIRST_NUMBER = 11


@dataclass(frozen=True)
class LinkProgram:
    """What to run where.

    Attributes:
        plan: the plan it makes true, in real units; every pair that takes a class of its own has a
            constraint in it.
        base_delays_ms: what the testbed itself takes one way, by pair, subtracted from that pair's
            delay; 0 where missing.
        numbers: class number of each destination, the same on every host.
        hosts: every host by its name, with its addresses.
        fan_out: how many constrained links leave each host.
        links: EnOSlib's service holding every host's constraints.
        sources: the same by host name.
        intakes: how hosts shape what they receive, where there is no fabric to do so.
        fabric_devices: lines for one `ip -batch -` between the hosts.
        fabric_queues: lines for one `tc -batch -` between the hosts.
        plain: only rates are ever asked for, which takes no netem.
    """

    plan: LinkPlan
    base_delays_ms: Mapping[Pair, float]
    numbers: Mapping[str, int]
    hosts: Mapping[str, Host]
    fan_out: Mapping[str, int]
    links: ShapedLinks
    sources: Mapping[str, LinkSource]
    intakes: Mapping[str, IngressShaper]
    fabric_devices: tuple[str, ...]
    fabric_queues: tuple[str, ...]
    plain: bool = False

    def in_tc_terms(self, pair: Pair, constraint: Constraint) -> LinkConstraint:
        """One ordered pair's constraint as EnOSlib's extended object.

        Raises:
            EmulationError: the pair is not in the plan, or its delay is below the testbed's own.
        """
        src, dst = pair
        if src not in self.sources or dst not in self.numbers:
            raise EmulationError(
                f"{src} to {dst} is not a link of this continuum; its plan names it or no event may"
            )
        source = self.sources[src]
        shared = next((each for each in source.shared if dst in each.receivers), None)
        limits = (constraint.rate_mbps, source.uplink_mbps, shared.rate_mbps if shared else None)
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
        """Commands that take every host's queues, filters and devices away again, by host."""
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
                f"a delay is end to end, and this testbed itself takes {base_ms:.3g} ms one way"
                " between them"
            )
            raise EmulationError(
                f"{pair[0]} to {pair[1]}, {delay_ms:g} ms: {rule}; ask for at least that"
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
        roles: EnOSlib's roles; hosts are found by the address they carry.
        networks: EnOSlib's networks to consider; None for all.
        ports: fabric-side device of each host, for downlinks and shared links; None where the hosts
            have those themselves.
        base_delays_ms: one-way delay of the testbed itself, by pair, to subtract.
        plain: for kernels without netem: queues in its place, which give rates only.
        unshaped_port: UDP port whose datagrams pass unshaped; 0 for none.

    Raises:
        EmulationError: a host is missing from the roles, a delay is below the testbed's own, a port
            is missing, a shared link cannot be had on the hosts, or something but a rate is asked
            for where `plain`.
    """
    if plain:
        _require_only_rates(plan)
    if len(plan.hosts) > MAX_HOSTS:
        raise EmulationError(
            f"{len(plan.hosts)} hosts: tc numbers at most {MAX_HOSTS} classes of a device"
        )
    devices, queues = _plan_fabric(plan, ports) if ports is not None else ((), ())
    deployed = _Deployed(_by_address(roles, networks), networks)
    shared, intakes = ({}, {}) if ports is not None else _on_hosts(plan, deployed, unshaped_port)
    plan = replace(plan, pairs=_with_classes(plan, shared))
    program = LinkProgram(
        plan=plan,
        base_delays_ms=base_delays_ms or {},
        numbers={host.name: _FIRST_NUMBER + i for i, host in enumerate(plan.hosts)},
        hosts={host.name: host for host in plan.hosts},
        fan_out=Counter(src for src, _ in plan.pairs),
        links=ShapedLinks(),
        sources=_plan_sources(plan, deployed, shared, unshaped_port),
        intakes=intakes,
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
            rule = "a delay, jitter or loss takes a kernel with netem, and none of these has it"
            raise EmulationError(
                f"{src} to {dst}: {rule}; load the module sch_netem on the nodes, or ask for rates"
                " only"
            )


@dataclass(frozen=True)
class _Deployed:
    """EnOSlib's hosts by their addresses, and the networks to consider."""

    by_address: Mapping[str, EnosHost]
    networks: Sequence[EnosNetwork] | None

    def find(self, host: Host) -> tuple[EnosHost, str]:
        """A host of the continuum and its network device."""
        found = self.by_address.get(host.address)
        devices = (
            [] if found is None else found.filter_interfaces(self.networks, include_unknown=False)
        )
        if found is None or not devices:
            raise EmulationError(
                f"{host.name}: none of the deployed hosts carries its address"
                f" {host.address or '(none)'}"
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


def _with_classes(
    plan: LinkPlan, shared: Mapping[str, Sequence[SharedClass]]
) -> Mapping[Pair, Constraint]:
    """The constraints of the plan, and a neutral one for pairs that only a shared class is for."""
    only = {
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
    unshaped_port: int,
) -> dict[str, LinkSource]:
    """A constraint-less source for every host that sends through a constraint or an uplink."""
    sending = {src for src, _ in plan.pairs} | {
        name for name, link in plan.access.items() if link.up_mbps is not None
    }
    return {
        host.name: replace(
            _plan_source(plan, host, deployed),
            shared=shared.get(host.name, ()),
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
    """Downlinks and shared links without a fabric: what hosts add to what they send, and what they
    do to what they receive.
    """
    for name, reason in impossible_links(plan).items():
        raise EmulationError(
            f"{name} of heterogeneity.yaml: {reason}; leave it out, or run --on local"
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
    """Downlinks and shared links, between the hosts. Nothing there changes while a run goes on, so
    netem serialises.
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
        fix = "use links: userspace, or drop downlinks and shared links from heterogeneity.yaml"
        raise EmulationError(
            f"{host}: downlinks and shared links need its port on the fabric, which is unknown;"
            f" {fix}"
        )
    return ports[host]
