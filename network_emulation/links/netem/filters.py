"""Filters on IPv4 and IPv6 addresses (tc-u32(8)): commands, and parser of tc's output (pure).

One priority holds filters of one protocol, so the IPv6 filters have their own. It comes before the
priorities that tc numbers itself: an IPv4 packet skips all IPv6 filters in one comparison.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

End = Literal["src", "dst"]

_NEIGHBOUR_SOLICITATION, _NEIGHBOUR_ADVERTISEMENT = 135, 136
_ICMPV6 = 58
_SHOWN_AT: Mapping[int, Mapping[End, tuple[int, ...]]] = {
    4: {"src": (12,), "dst": (16,)},
    6: {"src": (8, 12, 16, 20), "dst": (24, 28, 32, 36)},
}
"""Offsets of an address's 32-bit words in a packet, by IP version and end."""


def ipv6_filter(device: str, parent: str, priority: int) -> str:
    """Return the beginning of a command that adds a filter on IPv6 packets."""
    return f"tc filter add dev {device} parent {parent} protocol ipv6 prio {priority} u32"


def match_ipv6(end: End, address: str) -> str:
    """Return the match of a filter on an IPv6 address."""
    return f"match ip6 {end} {address}"


def discovery_filters(device: str, parent: str, priority: int, flow: str) -> Iterator[str]:
    """Yield commands that let IPv6 neighbor discovery bypass the shaping (RFC 4861).

    Its IPv4 counterpart, ARP, bypasses it anyway, because it is not IP.
    """
    for kind in (_NEIGHBOUR_SOLICITATION, _NEIGHBOUR_ADVERTISEMENT):
        icmp = f"match ip6 protocol {_ICMPV6} 0xff match u8 {kind} 0xff at 40"
        yield f"{ipv6_filter(device, parent, priority)} {icmp} flowid {flow}"


@dataclass
class ShownFilter:
    """One filter as printed by `tc -s filter show`.

    Attributes:
        version: IP version.
        flow: number of the class that it steers to; None if it steers to no class.
        device: device that it redirects to; empty if it does not redirect.
        bytes: bytes redirected so far, without the Ethernet header.
        packets: packets redirected so far.
        words: 32-bit words of a packet that it compares completely, by their offset.
    """

    version: int
    flow: int | None = None
    device: str = ""
    bytes: int = 0
    packets: int = 0
    words: dict[int, str] = field(default_factory=dict)

    def address(self, end: End) -> str:
        """Return the address that it matches at that end; empty if it matches none."""
        words = [self.words.get(offset, "") for offset in _SHOWN_AT[self.version][end]]
        if not all(words):
            return ""
        return str(ipaddress.ip_address(bytes.fromhex("".join(words))))


def parse_filters(shown: str) -> tuple[ShownFilter, ...]:
    """Return the filters of one device, in the order shown.

    Args:
        shown: output of `tc filter show`, with or without `-s`; other lines are ignored.
    """
    found: list[ShownFilter] = []
    for line in shown.splitlines():
        if line.startswith("filter "):
            found.append(ShownFilter(6 if " protocol ipv6 " in line else 4, _parse_flow_id(line)))
        elif found and (match := re.search(r"match ([0-9a-f]{8})/ffffffff at (\d+)", line)):
            found[-1].words[int(match[2])] = match[1]
        elif found and (match := re.search(r"mirred \(Egress Redirect to device (\S+?)\)", line)):
            found[-1].device = match[1]
        elif found and (match := re.search(r"Sent (\d+) bytes (\d+) pkt", line)):
            found[-1].bytes, found[-1].packets = int(match[1]), int(match[2])
    return tuple(found)


def _parse_flow_id(line: str) -> int | None:
    match = re.search(r"\bflowid 1:(\d+)", line)
    return int(match[1]) if match else None


def by_address(shown: str, end: End) -> Mapping[str, ShownFilter]:
    """Return the filters that match an address at one end, by that address."""
    return {address: each for each in parse_filters(shown) if (address := each.address(end))}
