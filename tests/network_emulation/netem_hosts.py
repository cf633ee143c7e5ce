"""Four hosts as a plan and as EnOSlib name them, for the tests of netem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from enoslib.objects import DefaultNetwork, IPAddress, NetDevice
from enoslib.objects import Host as EnosHost

from laggard.core.hosts import Host

HOSTS = tuple(
    Host(f"{layer}.trainer.1.{i}", layer, "trainer", 1, i, f"10.77.0.{n}")
    for n, (layer, i) in enumerate([("cloud", 1), ("fog", 1), ("edge", 1), ("edge", 2)], 1)
)
CLOUD, FOG, EDGE1, EDGE2 = (host.name for host in HOSTS)
HOSTS6 = tuple(replace(host, ipv6=(f"fd77::{n}", f"fe80::{n}")) for n, host in enumerate(HOSTS, 1))
PORTS = {host.name: f"port{i}" for i, host in enumerate(HOSTS)}


def enos(hosts: Sequence[Host]) -> dict[str, list[EnosHost]]:
    network = DefaultNetwork("10.77.0.0/16")
    return {
        host.name: [
            EnosHost(
                f"ns-{host.name}",
                net_devices={NetDevice("eth0", {IPAddress(f"{host.address}/16", network)})},
            )
        ]
        for host in hosts
    }
