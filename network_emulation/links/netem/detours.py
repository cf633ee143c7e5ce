"""Detours of packets through the host that has the queue of a shared link (pure).

A sender reaches the other receivers through this host, by a route of its own for each. The host
forwards the packets, and neither sends redirects nor shapes them like its own.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from laggard.core.hosts import Host
from laggard.network_emulation.link_plan import LinkPlan, Pair
from laggard.network_emulation.links.end_host_shaping import plan_inlets
from laggard.network_emulation.links.netem.ingress_queue import Command


@dataclass(frozen=True)
class Detours:
    """Detours of one host's packets, and of those that it forwards.

    Attributes:
        device: device of the host on the experiment's network.
        routes: address of the host on the way, by the address of each receiver.
        forwarded: addresses of the hosts whose packets the host forwards.
    """

    device: str
    routes: Mapping[str, str]
    forwarded: tuple[str, ...] = ()

    def commands(self) -> tuple[Command, ...]:
        """Return the commands that set up the routes and the forwarding."""
        settings = [f"{name}={value}" for name, value in self._settings().items()]
        return (
            *((("sysctl", "-q", "-w", *settings),) if settings else ()),
            *(
                (*_ip(to), "route", "replace", _one(to), "via", via, "dev", self.device)
                for to, via in self.routes.items()
            ),
        )

    def query(self) -> Command | None:
        """Return the command that prints the present settings; None if none are changed."""
        names = tuple(self._settings())
        return ("sysctl", *names) if names else None

    def removals(self, shown: str) -> tuple[Command, ...]:
        """Return the commands that restore the routes and the forwarding.

        Args:
            shown: output of `query` before anything was set up.
        """
        before = ["".join(line.split()) for line in shown.splitlines() if "=" in line]
        return (
            *((*_ip(to), "route", "del", _one(to)) for to in self.routes),
            *((("sysctl", "-q", "-w", *before),) if before else ()),
        )

    def _settings(self) -> Mapping[str, int]:
        if not self.forwarded:
            return {}
        redirects = {f"net.ipv4.conf.{device}.send_redirects": 0 for device in ("all", self.device)}
        has_ipv6 = any(":" in each for each in self.forwarded)
        ipv6 = {"net.ipv6.conf.all.forwarding": 1} if has_ipv6 else {}
        return {"net.ipv4.ip_forward": 1, **redirects, **ipv6}


def list_detoured_pairs(plan: LinkPlan) -> Mapping[Pair, str]:
    """Return the host on the way of every pair whose packets make a detour."""
    return {
        (src, dst): inlet.host
        for inlet in plan_inlets(plan)
        for src in inlet.senders
        for dst in inlet.receivers
        if dst != inlet.host
    }


def plan_detours(plan: LinkPlan, devices: Mapping[str, str]) -> Mapping[str, Detours]:
    """Return the detours of every host that has any.

    Args:
        plan: all links.
        devices: device of every host on the experiment's network.
    """
    hosts = {host.name: host for host in plan.hosts}
    routes: dict[str, dict[str, str]] = {}
    forwarded: dict[str, dict[str, None]] = {}
    for (src, dst), router in list_detoured_pairs(plan).items():
        routes.setdefault(src, {}).update(_route(hosts[dst], hosts[router]))
        forwarded.setdefault(router, {}).update(dict.fromkeys(_list_addresses(hosts[src])))
    return {
        name: Detours(devices[name], routes.get(name, {}), tuple(forwarded.get(name, ())))
        for name in hosts
        if name in routes or name in forwarded
    }


def _route(receiver: Host, router: Host) -> Mapping[str, str]:
    """Return the address of the router by each address of a receiver, of the same IP version."""
    ways = {_version(each): each for each in reversed(_list_addresses(router))}
    return {
        each: ways[_version(each)] for each in _list_addresses(receiver) if _version(each) in ways
    }


def _list_addresses(host: Host) -> Sequence[str]:
    """Return the addresses of a host that packets can be routed to."""
    return [
        each for each in (host.address, *host.ipv6) if not ipaddress.ip_address(each).is_link_local
    ]


def _version(address: str) -> int:
    return ipaddress.ip_address(address).version


def _ip(address: str) -> tuple[str, ...]:
    return ("ip", "-6") if ":" in address else ("ip",)


def _one(address: str) -> str:
    return f"{address}/{ipaddress.ip_address(address).max_prefixlen}"
