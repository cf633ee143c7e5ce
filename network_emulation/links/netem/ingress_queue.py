"""What a host of its own machine does to what it receives: an ifb device per bottleneck, which
incoming packets pass through.

Redirected is only what other hosts of the continuum send, by its source address: a controller's
connections, which may come in by the same device, pass untouched. The queue is a token bucket
(tc-tbf(8)): of the kernel's queues the one that takes the super-packets apart which a network card
has put together on their way in, so that they are serialised one by one; and it takes no netem.
Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from laggard.core.errors import EmulationError
from laggard.core.units import parse_delay_ms, parse_rate_mbps
from laggard.network_emulation.link_plan import PACKET_BYTES, QUEUE_PACKETS
from laggard.network_emulation.links.netem.filters import (
    by_address,
    discovery_filters,
    ipv6_filter,
    match_ipv6,
)
from laggard.network_emulation.links.netem.htb import as_batch, burst_bytes, rate_text

DEVICE_PREFIX = "laggard-in"

_INGRESS = "ffff:"
_IPV6_PRIORITY = 3
_ETHERNET_BYTES = 14
_RATE_TOLERANCE = 0.005
_QUEUE_TOLERANCE = 0.01
"""tc prints what a queue holds as a time, with three digits."""

Command = tuple[str, ...]


@dataclass(frozen=True)
class IngressQueue:
    """One bottleneck of what a host receives.

    Attributes:
        device: the ifb device that it is.
        rate_mbps: what it lets through.
        senders: addresses of the hosts whose packets pass through it, by their names.
    """

    device: str
    rate_mbps: float
    senders: Mapping[str, tuple[str, ...]]

    @property
    def limit_bytes(self) -> int:
        """Bytes that may wait, the burst included."""
        return QUEUE_PACKETS * PACKET_BYTES + burst_bytes(self.rate_mbps)

    @property
    def longest_wait_ms(self) -> float:
        """How long a packet waits in a full queue."""
        return QUEUE_PACKETS * PACKET_BYTES * 8e-3 / self.rate_mbps


@dataclass(frozen=True)
class IngressShaper:
    """All bottlenecks of what one host receives.

    Attributes:
        device: the host's device on the experiment's network.
        queues: the bottlenecks; no sender is in two.
        unshaped_port: UDP port whose datagrams pass unshaped; 0 for none.
    """

    device: str
    queues: tuple[IngressQueue, ...]
    unshaped_port: int = 0

    def devices(self) -> tuple[str, ...]:
        """Lines for one `ip -batch -`."""
        return tuple(
            line
            for queue in self.queues
            for line in (f"link add {queue.device} type ifb", f"link set {queue.device} up")
        )

    def batch(self) -> tuple[str, ...]:
        """Lines for one `tc -batch -` that applies everything and shows what came of it."""
        lines = [
            *map(_build_bucket_command, self.queues),
            f"tc qdisc add dev {self.device} ingress",
            *self._unshaped(),
        ]
        for queue in self.queues:
            lines += [
                self._redirection(each, queue)
                for addresses in queue.senders.values()
                for each in addresses
            ]
        return as_batch([*lines, "tc qdisc show", self._show_filters()])

    def count_command(self) -> Command:
        """The command that shows what each filter has redirected."""
        return ("tc", "-s", *self._show_filters().split()[1:])

    def _show_filters(self) -> str:
        return f"tc filter show dev {self.device} parent {_INGRESS}"

    def removals(self) -> tuple[Command, ...]:
        """Commands that remove everything; packets that are redirected to a device that is gone
        would be lost, so the filters go first.
        """
        ingress = ("tc", "qdisc", "del", "dev", self.device, "ingress")
        return (ingress, *(_build_delete_command(queue.device) for queue in self.queues))

    def _unshaped(self) -> Iterator[str]:
        """Filters before all others, which end the search and do nothing."""
        past = "1:1"
        if any(
            ":" in each
            for queue in self.queues
            for addresses in queue.senders.values()
            for each in addresses
        ):
            yield from discovery_filters(self.device, _INGRESS, _IPV6_PRIORITY, past)
        if self.unshaped_port:
            head = f"{self._filter(1)} match ip protocol 17 0xff match ip"
            for end in ("dport", "sport"):
                yield f"{head} {end} {self.unshaped_port} 0xffff flowid {past}"

    def _redirection(self, address: str, queue: IngressQueue) -> str:
        if ":" in address:
            head = (
                f"{ipv6_filter(self.device, _INGRESS, _IPV6_PRIORITY)} {match_ipv6('src', address)}"
            )
        else:
            head = f"{self._filter(2)} match ip src {address}"
        return f"{head} action mirred egress redirect dev {queue.device}"

    def _filter(self, priority: int) -> str:
        return f"tc filter add dev {self.device} parent {_INGRESS} protocol ip prio {priority} u32"


def _build_bucket_command(queue: IngressQueue) -> str:
    rate, burst = rate_text(queue.rate_mbps), burst_bytes(queue.rate_mbps)
    return (
        f"tc qdisc replace dev {queue.device} root handle 1: tbf rate {rate} burst {burst} limit"
        f" {queue.limit_bytes}"
    )


def _build_delete_command(device: str) -> Command:
    return ("ip", "link", "del", device)


def make_room(host: str, intake: IngressShaper, links: str, qdiscs: str) -> tuple[Command, ...]:
    """Commands that remove what the agent of an earlier run left when it was killed.

    Args:
        host: name of the host.
        intake: what is to be set up there.
        links: what `ip -j link show` shows there.
        qdiscs: what `tc -j qdisc show` shows of the device.

    Raises:
        EmulationError: somebody else treats what the device receives, or its packets are too large.
    """
    found = {str(link["ifname"]): int(link["mtu"]) for link in json.loads(links)}
    left = [name for name in found if name.startswith(DEVICE_PREFIX)]
    treated = any(qdisc["kind"] in {"ingress", "clsact"} for qdisc in json.loads(qdiscs))
    if treated and not left:
        rule = (
            f"another program treats what {intake.device} receives there, so that a downlink cannot"
        )
        fix = (
            f"end it, or drop the downlink; `tc filter show dev {intake.device} ingress` shows what"
            " it does"
        )
        raise EmulationError(f"{host}: {rule}; {fix}")
    _require_fitting(host, intake, found.get(intake.device, 0))
    ingress = [("tc", "qdisc", "del", "dev", intake.device, "ingress")] if treated else []
    return (*ingress, *map(_build_delete_command, left))


def _require_fitting(host: str, intake: IngressShaper, mtu: int) -> None:
    """A token bucket drops packets that are larger than its burst."""
    least = min(burst_bytes(queue.rate_mbps) for queue in intake.queues)
    if mtu + _ETHERNET_BYTES > least:
        rule = (
            f"packets on {intake.device} may have {mtu} bytes, and a slow downlink serialises those"
            " of an MTU of 1500"
        )
        raise EmulationError(
            f"{host}: {rule}; `ip link set dev {intake.device} mtu 1500` there, or drop the"
            " downlink"
        )


def parse_received_counters(intake: IngressShaper, shown: str) -> Mapping[str, tuple[int, int]]:
    """Link-layer bytes and packets that came from each sender, by its name.

    Args:
        intake: of the host.
        shown: what `tc -s filter show` shows; it counts bytes without the Ethernet header.
    """
    filters = by_address(shown, "src")
    senders = {
        name: addresses for queue in intake.queues for name, addresses in queue.senders.items()
    }
    counted: dict[str, tuple[int, int]] = {}
    for name, addresses in senders.items():
        own = [filters[address] for address in addresses if address in filters]
        packets = sum(each.packets for each in own)
        if own:
            counted[name] = sum(each.bytes for each in own) + _ETHERNET_BYTES * packets, packets
    return counted


def verify_ingress(host: str, intake: IngressShaper, shown: str) -> None:
    """Compare what a host shows with what its intake asks for.

    Args:
        host: its name.
        intake: what was asked for.
        shown: output of the intake's batch.

    Raises:
        EmulationError: naming the first difference.
    """
    buckets = {
        match[1]: (parse_rate_mbps(match[2]), parse_delay_ms(match[3]))
        for match in re.finditer(
            r"qdisc tbf 1: dev (\S+) root .*?\brate (\S+) burst \S+ lat (\S+)", shown
        )
    }
    redirected = {address: each.device for address, each in by_address(shown, "src").items()}
    for queue in intake.queues:
        wrong = _describe_difference(queue, buckets.get(queue.device), redirected)
        if wrong:
            fix = "is another program changing its queues?"
            raise EmulationError(
                f"what {host} receives: {wrong}, as read back from the kernel; {fix}"
            )


def _describe_difference(
    queue: IngressQueue, bucket: tuple[float, float] | None, redirected: Mapping[str, str]
) -> str:
    if bucket is None:
        return f"{queue.device} has no queue"
    rate_mbps, wait_ms = bucket
    if abs(rate_mbps - queue.rate_mbps) > _RATE_TOLERANCE * queue.rate_mbps + 1e-3:
        return f"rate in Mbit/s is {rate_mbps:g} instead of {queue.rate_mbps:g}"
    if abs(wait_ms - queue.longest_wait_ms) > _QUEUE_TOLERANCE * queue.longest_wait_ms + 1e-3:
        return f"a full queue takes {wait_ms:g} ms instead of {queue.longest_wait_ms:g}"
    astray = [
        name
        for name, addresses in queue.senders.items()
        if any(redirected.get(address) != queue.device for address in addresses)
    ]
    return f"packets of {', '.join(astray[:5])} do not pass {queue.device}" if astray else ""
