"""Generator of `layers_services/g5k/reference.json` from the testbed's reference repository.

    python benchmarks/g5k_reference.py [CLONE]

Without a clone, it makes a temporary one. It keeps only facts that scenarios are checked against:
names, counts, sizes and rates, for every node. A bare repository is sufficient.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from laggard.layers_services.g5k.reference import (
    FILE,
    Cluster,
    Gpus,
    Hardware,
    PowerMeter,
    Reference,
    format_number_ranges,
)

REPOSITORY = "https://github.com/grid5000/reference-repository"
FOLDER = "data/grid5000/sites"
# In the order of preference.
METERS: Sequence[tuple[str, PowerMeter]] = (
    ("wattmetre_power_watt", "wattmetre"),
    ("pdu_outlet_power_watt", "pdu"),
    ("bmc_node_power_watt", "bmc"),
)
Json = dict[str, Any]  # documents of the repository have no schema here


def git(checkout: Path, *arguments: str) -> bytes:
    """Return the output of a git command."""
    return subprocess.run(
        ["git", "-C", str(checkout), *arguments], check=True, capture_output=True
    ).stdout


def documents(checkout: Path) -> dict[str, Json]:
    """Read every cluster's and node's document, by path."""
    wanted = re.compile(rf"{FOLDER}/\w+/clusters/\w+/(\w+\.json|nodes/[\w-]+\.json)")
    found = {}
    with tarfile.open(fileobj=io.BytesIO(git(checkout, "archive", "HEAD", FOLDER))) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member) if wanted.fullmatch(member.name) else None
            if file is not None:
                found[member.name] = json.loads(file.read())
    return found


def cluster_of(site: str, described: Json, nodes: Mapping[int, Json]) -> Cluster:
    """Return the facts of one cluster, with the hardware of every node."""
    every = list(nodes.values())
    return Cluster(
        name=described["uid"],
        site=site,
        hardware=_group_alike({number: hardware_of(node) for number, node in nodes.items()}),
        queues=tuple(queue for queue in described["queues"] if queue != "admin"),
        exotic=any(node.get("exotic", False) for node in every),
        deploy=all(node["supported_job_types"]["deploy"] for node in every),
        kavlan=all(node.get("kavlan") for node in every),
        power_meter=_meter(described),
        longest_hours=_longest(nodes),
    )


def hardware_of(node: Json) -> Hardware:
    """Return the hardware of one node, without its number."""
    rates = _rates(node)
    return Hardware(
        numbers="",
        cores=node["architecture"]["nb_cores"],
        memory_gib=round(node["main_memory"]["ram_size"] / 2**30),
        cpu=_cpu(node),
        architecture=node["architecture"]["platform_type"],
        gpus=_gpus(node),
        ethernet_gbps=rates["ethernet"],
        ethernets=int(rates["ethernets"]),
        infiniband_gbps=rates["infiniband"],
        omnipath_gbps=rates["omnipath"],
    )


def _group_alike(nodes: Mapping[int, Hardware]) -> tuple[Hardware, ...]:
    """Return one entry for all nodes that are alike, in the order of their numbers."""
    return tuple(
        kind.model_copy(
            update={"numbers": format_number_ranges(n for n, each in nodes.items() if each == kind)}
        )
        for kind in dict.fromkeys(nodes[number] for number in sorted(nodes))
    )


def _cpu(node: Json) -> str:
    processor, count = node["processor"], node["architecture"]["nb_procs"]
    words = (
        processor["vendor"],
        processor["model"].removeprefix(processor["vendor"]),
        processor["version"],
    )
    return f"{count} x {' '.join(' '.join(str(word) for word in words).split())}"


def _gpus(node: Json) -> tuple[Gpus, ...]:
    devices = Counter(
        (device["model"], round(device["memory"] / 2**30))
        for device in node.get("gpu_devices", {}).values()
    )
    return tuple(
        Gpus(model=model, count=count, memory_gib=memory_gib)
        for (model, memory_gib), count in devices.items()
    )


def _rates(node: Json) -> dict[str, float]:
    usable = [a for a in node["network_adapters"] if a.get("enabled") and not a.get("management")]
    ethernet = [a for a in usable if a.get("interface") == "Ethernet" and a.get("mountable")]
    mounted = [a for a in ethernet if a.get("mounted")] or ethernet

    def fastest(kind: str) -> float:
        rates = [
            a.get("rate") or 0 for a in usable if a.get("interface") == kind and a.get("mountable")
        ]
        return max(rates, default=0) / 1e9

    return {
        "ethernet": max((a.get("rate") or 0 for a in mounted), default=0) / 1e9,
        "ethernets": len(ethernet),
        "infiniband": fastest("InfiniBand"),
        "omnipath": fastest("Omni-Path"),
    }


def _meter(described: Json) -> PowerMeter:
    names = {metric["name"] for metric in described.get("metrics", [])}
    return next((meter for metric, meter in METERS if metric in names), "")


def _longest(nodes: Mapping[int, Json]) -> dict[str, float]:
    limits = {
        number: node["supported_job_types"].get("max_walltime") or 0
        for number, node in nodes.items()
    }
    return {
        format_number_ranges(n for n, limit in limits.items() if limit == seconds): seconds / 3600
        for seconds in sorted(set(limits.values()) - {0})
    }


def reference_of(checkout: Path) -> Reference:
    """Return all clusters of the checkout's newest commit."""
    found = documents(checkout)
    clusters = []
    for path in sorted(found):
        described, parts = found[path], path.split("/")
        if parts[-2] == "nodes" or described.get("type") != "cluster":
            continue
        folder = path.rpartition("/")[0]
        nodes = {
            int(other.rpartition("-")[2].removesuffix(".json")): node
            for other, node in found.items()
            if other.startswith(f"{folder}/nodes/")
        }
        if nodes:
            clusters.append(cluster_of(parts[3], described, nodes))
    commit, date = git(checkout, "log", "-1", "--format=%H %cs").decode().split()
    return Reference(repository=REPOSITORY, commit=commit, date=date, clusters=tuple(clusters))


def text_of(reference: Reference) -> str:
    """Return the text of the file, one cluster per line, so that diffs show changed clusters."""
    head = reference.model_dump(exclude={"clusters"})
    lines = ",\n".join(
        json.dumps(c.model_dump(mode="json", exclude_defaults=True)) for c in reference.clusters
    )
    opened = json.dumps(head, indent=1).removesuffix("\n}")
    return f'{opened},\n "clusters": [\n{lines}\n]\n}}\n'


def main() -> None:
    """Write the file and print a summary."""
    with TemporaryDirectory() as folder:
        clone = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder, "clone")
        if len(sys.argv) == 1:
            command = ["git", "clone", "--quiet", "--bare", "--depth", "1", REPOSITORY, str(clone)]
            subprocess.run(command, check=True)
        reference = reference_of(clone)
    FILE.write_text(text_of(reference), encoding="utf-8")
    per_site = Counter(cluster.site for cluster in reference.clusters)
    nodes = sum(cluster.nodes for cluster in reference.clusters)
    print(
        f"{FILE.name}: {len(reference.clusters)} clusters, {nodes} nodes, {FILE.stat().st_size}"
        " bytes"
    )
    print(
        f"  state of {reference.date} ({reference.commit[:12]}):"
        f" {', '.join(f'{s} {n}' for s, n in sorted(per_site.items()))}"
    )


if __name__ == "__main__":
    main()
