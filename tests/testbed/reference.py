"""Facts of a few clusters of Grid'5000, cut from its reference repository (`g5k.json` says which
version)."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tests.testbed.nodes import NodeSpec

DOMAIN = "grid5000.fr"
Facts = dict[str, Any]


@cache
def load() -> Mapping[str, Facts]:
    """All sites: `facts`, `servers` and `clusters`, which have `facts` and `nodes`."""
    content = json.loads((Path(__file__).parent / "g5k.json").read_text(encoding="utf-8"))
    sites: Mapping[str, Facts] = content["sites"]
    return sites


def full_name(uid: str, site: str) -> str:
    """Name of a node in the network, such as `gemini-1.lyon.grid5000.fr`."""
    return f"{uid}.{site}.{DOMAIN}"


def node_names(site: str, cluster: str = "") -> tuple[str, ...]:
    """Names of the nodes of a cluster, or of all clusters of a site."""
    clusters = load()[site]["clusters"]
    chosen = [cluster] if cluster else list(clusters)
    return tuple(full_name(uid, site) for name in chosen for uid in clusters[name]["nodes"])


def pool(counts: Mapping[str, int]) -> tuple[NodeSpec, ...]:
    """The first nodes of clusters as stand-ins, with the names and addresses that they have on
    Grid'5000.

    Args:
        counts: how many of each cluster.

    Raises:
        KeyError: a cluster is not among the facts.
        ValueError: a cluster has fewer nodes in the facts.
    """
    return tuple(spec for cluster, count in counts.items() for spec in _first(cluster, count))


def site_of(cluster: str) -> str:
    """The site that has a cluster; KeyError where none has."""
    for site, content in load().items():
        if cluster in content["clusters"]:
            return site
    raise KeyError(cluster)


def _first(cluster: str, count: int) -> Iterator[NodeSpec]:
    site = site_of(cluster)
    nodes = load()[site]["clusters"][cluster]["nodes"]
    if count > len(nodes):
        raise ValueError(f"{cluster}: {count} nodes asked for, and the facts have {len(nodes)}")
    networks = load()[site]["facts"]["kavlans"]
    for uid in list(nodes)[:count]:
        adapter = next(
            each
            for each in nodes[uid]["network_adapters"]
            if each["mounted"] and each["interface"] == "Ethernet"
        )
        inside = nodes[uid]["kavlan"][adapter["device"]]
        vlans = {
            (
                number := name.removeprefix("kavlan-")
            ): f"{address}/{_prefix(networks[number]['network'])}"
            for name, address in inside.items()
        }
        prefix = _prefix(networks["default"]["network"])
        yield NodeSpec(full_name(uid, site), adapter["ip"], site, prefix_length=prefix, vlans=vlans)


def _prefix(network: str) -> int:
    return ipaddress.IPv4Network(network).prefixlen
