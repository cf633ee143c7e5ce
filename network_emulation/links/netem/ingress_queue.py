"""Ingress queues of a host on a machine of its own: one ifb device per bottleneck (pure).

Only packets from other hosts of the continuum are redirected, by source address. A controller's
connections, which may use the same device, pass untouched. The queue is a token bucket
(tc-tbf(8)). Among the kernel's queues, it is the one that splits super-packets, which a network
card has merged on arrival, so that they are serialized one by one; and it needs no netem.
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
"""Relative tolerance of the read-back: tc prints the queue's length as a time with three
digits."""

Command = tuple[str, ...]


@dataclass(frozen=True)
class IngressQueue:
    """One bottleneck of a host's inbound traffic.

    Attributes:
        device: its ifb device.
        rate_mbps: its rate.
        senders: addresses of the hosts whose packets pass through it, by their names.
    """

    device: str
    rate_mbps: float
    senders: Mapping[str, tuple[str, ...]]

    @property
    def limit_bytes(self) -> int:
        """Return the bytes that may wait, the burst included."""
        return QUEUE_PACKETS * PACKET_BYTES + burst_bytes(self.rate_mbps)

    @property
    def longest_wait_ms(self) -> float:
        """Return the time that a packet waits in a full queue."""
        return QUEUE_PACKETS * PACKET_BYTES * 8e-3 / self.rate_mbps


@dataclass(frozen=True)
class IngressShaper:
    """All bottlenecks of one host's inbound traffic.

    Attributes:
        device: the host's device on the experiment's network.
        queues: the bottlenecks; no sender is in two of them.
        unshaped_port: UDP port whose datagrams pass unshaped; 0 for none.
    """

    device: str
    queues: tuple[IngressQueue, ...]
    unshaped_port: int = 0

    def devices(self) -> tuple[str, ...]:
        """Return the lines of one `ip -batch -` that creates the devices."""
        return tuple(
            line
            for queue in self.queues
            for line in (f"link add {queue.device} type ifb", f"link set {queue.device} up")
        )

    def batch(self) -> tuple[str, ...]:
        """Return the lines of one `tc -batch -` that applies everything and shows the result."""
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
        """Return the command that shows the traffic that each filter has redirected."""
        return ("tc", "-s", *self._show_filters().split()[1:])

    def _show_filters(self) -> str:
        return f"tc filter show dev {self.device} parent {_INGRESS}"

    def removals(self) -> tuple[Command, ...]:
        """Return the commands that remove everything.

        The filters go first: packets redirected to a removed device would be lost.
        """
        ingress = ("tc", "qdisc", "del", "dev", self.device, "ingress")
        return (ingress, *(_build_delete_command(queue.device) for queue in self.queues))

    def _unshaped(self) -> Iterator[str]:
        """Yield filters that precede all others; they end the search without an action."""
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
    """Return the commands that remove what a killed agent of an earlier run left.

    Args:
        host: name of the host.
        intake: the shaper that is to be set up there.
        links: output of `ip -j link show` on the host.
        qdiscs: output of `tc -j qdisc show` for the device.

    Raises:
        EmulationError: if another program handles the device's inbound packets, or they are too
            large.
    """
    found = {str(link["ifname"]): int(link["mtu"]) for link in json.loads(links)}
    left = [name for name in found if name.startswith(DEVICE_PREFIX)]
    treated = any(qdisc["kind"] in {"ingress", "clsact"} for qdisc in json.loads(qdiscs))
    if treated and not left:
        rule = (
            f"another program already filters the inbound traffic of {intake.device}, so a downlink"
            " cannot be set up"
        )
        fix = (
            f"end that program, or remove the downlink; `tc filter show dev {intake.device}"
            " ingress` shows its filters"
        )
        raise EmulationError(f"{host}: {rule}; {fix}")
    _require_fitting(host, intake, found.get(intake.device, 0))
    # Devices with Laggard's prefix prove that the ingress queue is Laggard's too.
    ingress = [("tc", "qdisc", "del", "dev", intake.device, "ingress")] if treated else []
    return (*ingress, *map(_build_delete_command, left))


def _require_fitting(host: str, intake: IngressShaper, mtu: int) -> None:
    """Raise an error if packets can be larger than a bucket's burst, which would drop them."""
    least = min(burst_bytes(queue.rate_mbps) for queue in intake.queues)
    if mtu + _ETHERNET_BYTES > least:
        rule = (
            f"{intake.device} has an MTU of {mtu} bytes, but a slow downlink supports an MTU of at"
            " most 1500"
        )
        raise EmulationError(
            f"{host}: {rule}; run `ip link set dev {intake.device} mtu 1500` there, or remove the"
            " downlink"
        )


def parse_received_counters(intake: IngressShaper, shown: str) -> Mapping[str, tuple[int, int]]:
    """Return the link-layer bytes and packets received from each sender, by its name.

    Args:
        intake: the shaper of the host.
        shown: output of `tc -s filter show`; its byte counts exclude the Ethernet header.
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
    """Compare the values that a host shows with its shaper.

    Args:
        host: name of the host.
        intake: the requested shaper.
        shown: output of the shaper's batch.

    Raises:
        EmulationError: at the first difference, which it names.
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
            fix = "check that no other program changes its queues"
            raise EmulationError(f"inbound traffic of {host}: the kernel shows that {wrong}; {fix}")


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
