"""A link plan as the commands that make it so: per host through EnOSlib's objects, and on the fabric between the hosts.

Pure: nothing is run here. On the fabric, which is the bridge of a local run, a host's downlink is the queue of its port, and
a shared bottleneck is an ifb device that the ports of its senders redirect to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from enoslib.objects import Host as EnosHost
from enoslib.objects import Network as EnosNetwork

from laggard.errors import EmulationError
from laggard.hosts import Host
from laggard.network_emulation.links import QUEUE_PACKETS, Constraint, LinkPlan, Pair
from laggard.network_emulation.netem.htb import (
    ROOT,
    UPLINK_CLASS,
    LinkConstraint,
    LinkSource,
    ShapedLinks,
    as_batch,
    burst_bytes,
    delay_text,
    guaranteed_mbps,
    limit_packets,
    loss_text,
    rate_text,
)

MAX_HOSTS = 9_900
SEGMENT_BELOW_MBPS = 1_000.0
_FIRST_NUMBER = 11


@dataclass(frozen=True)
class LinkProgram:
    """What to run where.

    Attributes:
        plan: the plan it makes true, in real units.
        base_delays_ms: what the testbed itself takes one way, by pair, subtracted from that pair's delay; 0 where missing.
        numbers: class number of each destination, the same on every host.
        addresses: address of each host.
        fan_out: how many constrained links leave each host.
        links: EnOSlib's service holding every host's constraints.
        sources: the same by host name.
        fabric_devices: lines for one `ip -batch -` between the hosts.
        fabric_queues: lines for one `tc -batch -` between the hosts.
        plain: only rates are ever asked for, which takes no netem.
    """

    plan: LinkPlan
    base_delays_ms: Mapping[Pair, float]
    numbers: Mapping[str, int]
    addresses: Mapping[str, str]
    fan_out: Mapping[str, int]
    links: ShapedLinks
    sources: Mapping[str, LinkSource]
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
            raise EmulationError(f"{src} to {dst} is not a link of this continuum; its plan names it or no event may")
        source = self.sources[src]
        rate_mbps, guaranteed = constraint.rate_mbps, ""
        if source.uplink_mbps is not None:
            share_mbps = guaranteed_mbps(source.uplink_mbps, self.fan_out[src])
            rate_mbps = min(source.uplink_mbps, rate_mbps or source.uplink_mbps)
            guaranteed = rate_text(min(share_mbps, rate_mbps))
        return LinkConstraint(
            device=source.device,
            target=self.addresses[dst],
            delay=delay_text(self._emulated_ms(pair, constraint.delay_ms)),
            rate=rate_text(rate_mbps),
            loss=loss_text(constraint.loss_percent),
            number=self.numbers[dst],
            jitter=delay_text(constraint.jitter_ms) if constraint.jitter_ms else "",
            limit=limit_packets(constraint),
            burst=burst_bytes(rate_mbps),
            parent=UPLINK_CLASS if guaranteed else ROOT,
            guaranteed=guaranteed,
            plain=self.plain,
        )

    def _emulated_ms(self, pair: Pair, delay_ms: float) -> float:
        base_ms = self.base_delays_ms.get(pair, 0.0)
        if 0 < delay_ms < base_ms:
            rule = f"a delay is end to end, and this testbed itself takes {base_ms:.3g} ms one way between them"
            raise EmulationError(f"{pair[0]} to {pair[1]}, {delay_ms:g} ms: {rule}; ask for at least that")
        return max(0.0, delay_ms - base_ms)


def compile_links(
    plan: LinkPlan,
    roles: Mapping[str, Sequence[EnosHost]],
    networks: Sequence[EnosNetwork] | None,
    ports: Mapping[str, str],
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
        ports: fabric-side device of each host; needed for downlinks and shared links only.
        base_delays_ms: one-way delay of the testbed itself, by pair, to subtract.
        plain: for kernels without netem: queues in its place, which give rates only.
        unshaped_port: UDP port whose datagrams pass unshaped; 0 for none.

    Raises:
        EmulationError: a host is missing from the roles, a delay is below the testbed's own, a port is missing, or
            something but a rate is asked for where `plain`.
    """
    if plain:
        _require_only_rates(plan)
    if len(plan.hosts) > MAX_HOSTS:
        raise EmulationError(f"{len(plan.hosts)} hosts: tc numbers at most {MAX_HOSTS} classes of a device")
    devices, queues = _fabric(plan, ports)
    program = LinkProgram(
        plan=plan,
        base_delays_ms=base_delays_ms or {},
        numbers={host.name: _FIRST_NUMBER + i for i, host in enumerate(plan.hosts)},
        addresses={host.name: host.address for host in plan.hosts},
        fan_out=Counter(src for src, _ in plan.pairs),
        links=ShapedLinks(),
        sources=_sources(plan, roles, networks, unshaped_port),
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
                f"{src} to {dst}: {rule}; load the module sch_netem on the nodes, or ask for rates only"
            )


def _sources(
    plan: LinkPlan,
    roles: Mapping[str, Sequence[EnosHost]],
    networks: Sequence[EnosNetwork] | None,
    unshaped_port: int,
) -> dict[str, LinkSource]:
    """A constraint-less source for every host that sends through a constraint or an uplink."""
    by_address = {
        str(address.ip.ip): host
        for group in roles.values()
        for host in group
        for address in host.filter_addresses(networks, include_unknown=False)
        if address.ip is not None
    }
    sending = {src for src, _ in plan.pairs} | {name for name, link in plan.access.items() if link.up_mbps is not None}
    return {
        host.name: replace(_source(plan, host, by_address.get(host.address), networks), unshaped_port=unshaped_port)
        for host in plan.hosts
        if host.name in sending
    }


def _source(
    plan: LinkPlan, host: Host, enos_host: EnosHost | None, networks: Sequence[EnosNetwork] | None
) -> LinkSource:
    devices = [] if enos_host is None else enos_host.filter_interfaces(networks, include_unknown=False)
    if enos_host is None or not devices:
        raise EmulationError(f"{host.name}: none of the deployed hosts carries its address {host.address or '(none)'}")
    access = plan.access.get(host.name)
    rates = [plan.expected(host.name, dst).rate_mbps for src, dst in plan.pairs if src == host.name]
    lossy = any(constraint.loss_percent for (src, _), constraint in plan.pairs.items() if src == host.name)
    slow = any(rate is None or rate <= SEGMENT_BELOW_MBPS for rate in rates)
    uplink_mbps = access.up_mbps if access else None
    return LinkSource(
        enos_host,
        device=str(devices[0]),
        uplink_mbps=uplink_mbps,
        segment=lossy or slow or (uplink_mbps or SEGMENT_BELOW_MBPS) < SEGMENT_BELOW_MBPS,
    )


def _fabric(plan: LinkPlan, ports: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Downlinks and shared links, between the hosts. Nothing there changes while a run goes on, so netem serialises."""
    devices: list[str] = []
    queues: list[str] = []
    for name, access in plan.access.items():
        if access.down_mbps is not None:
            queues.append(_bottleneck(_port(name, ports), access.down_mbps))
    addresses = {host.name: host.address for host in plan.hosts}
    redirecting: set[str] = set()
    for i, link in enumerate(plan.shared):
        device = f"shared{i}"
        devices += [f"link add {device} type ifb", f"link set {device} txqueuelen {QUEUE_PACKETS} up"]
        queues.append(_bottleneck(device, link.rate_mbps))
        for src, dst in sorted(link.pairs):
            port = _port(src, ports)
            if port not in redirecting:
                queues.append(f"tc qdisc add dev {port} ingress")
                redirecting.add(port)
            queues.append(
                f"tc filter add dev {port} parent ffff: protocol ip u32 match ip dst {addresses[dst]} "
                f"action mirred egress redirect dev {device}"
            )
    return tuple(devices), as_batch(queues)


def _bottleneck(device: str, rate_mbps: float) -> str:
    return f"tc qdisc replace dev {device} root handle {ROOT} netem rate {rate_text(rate_mbps)} limit {QUEUE_PACKETS}"


def _port(host: str, ports: Mapping[str, str]) -> str:
    if host not in ports:
        fix = "use links: userspace, or drop downlinks and shared links from heterogeneity.yaml"
        raise EmulationError(f"{host}: downlinks and shared links need its port on the fabric, which is unknown; {fix}")
    return ports[host]
