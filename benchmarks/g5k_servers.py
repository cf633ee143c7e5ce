"""Facts of named servers in `laggard plan --on g5k`, compared with the testbed's own documents.

    git clone --bare https://github.com/grid5000/reference-repository
    python benchmarks/g5k_servers.py reference-repository.git [--record]

Thirty servers: every server of a cluster whose nodes differ, up to half, and random ones. With
`--record`, their documents are cut to the compared facts for `tests/layers_services`.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from laggard.layers_services.g5k.description import format_hardware
from laggard.layers_services.g5k.reference import (
    Reference,
    load_reference,
    parse_server,
)
from tests.layers_services.g5k_servers import EXCERPT, describe_node, plan_hardware

SITES = "data/grid5000/sites"
SERVERS = 30
SEED = 1
Json = dict[str, Any]  # documents of the repository have no schema here


def _git(checkout: Path, *arguments: str) -> str:
    command = ["git", "-C", str(checkout), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _read_nodes(checkout: Path) -> Mapping[str, Json]:
    """Return the document of every node by its full name."""
    paths = _git(checkout, "ls-tree", "-r", "--name-only", "HEAD", SITES).split()
    wanted = [path for path in paths if "/clusters/" in path and "/nodes/" in path]
    names = "".join(f"HEAD:{path}\n" for path in wanted)
    command = ["git", "-C", str(checkout), "cat-file", "--batch=%(objectsize)"]
    output = subprocess.run(command, check=True, capture_output=True, input=names.encode()).stdout
    nodes: dict[str, Json] = {}
    for path in wanted:
        size, _, rest = output.partition(b"\n")
        text, output = rest[: int(size)], rest[int(size) + 1 :]
        parts = path.split("/")
        nodes[f"{Path(path).stem}.{parts[3]}.grid5000.fr"] = json.loads(text)
    return nodes


def _choose(nodes: Mapping[str, Json]) -> list[str]:
    clusters: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, node in nodes.items():
        clusters[name.rpartition("-")[0]][describe_node(node)].append(name)
    unlike = [kind[0] for kinds in clusters.values() if len(kinds) > 1 for kind in kinds.values()]
    chance = random.Random(SEED)
    others = sorted(set(nodes) - set(unlike))
    chosen = sorted(unlike)[: SERVERS // 2]
    return [*chosen, *chance.sample(others, SERVERS - len(chosen))]


def _cut(node: Json) -> Json:
    """Return the facts of a document that a plan shows."""
    adapters = [
        {
            key: each.get(key)
            for key in ("interface", "enabled", "management", "mountable", "mounted", "rate")
        }
        for each in node["network_adapters"]
    ]
    devices = {key: {"model": each["model"]} for key, each in node.get("gpu_devices", {}).items()}
    return {
        "architecture": {key: node["architecture"][key] for key in ("nb_cores", "platform_type")},
        "main_memory": node["main_memory"],
        "gpu_devices": devices,
        "network_adapters": adapters,
        "exotic": node.get("exotic", False),
        "queues": node["supported_job_types"]["queues"],
    }


def main() -> None:
    """Print the servers whose facts differ; record the excerpt if asked."""
    checkout = Path(sys.argv[1])
    nodes = {name: _cut(node) for name, node in _read_nodes(checkout).items()}
    chosen = {name: nodes[name] for name in _choose(nodes)}
    if "--record" in sys.argv[2:]:
        commit, date = _git(checkout, "log", "-1", "--format=%H %cs").split()
        source = f"https://github.com/grid5000/reference-repository at {commit} ({date})"
        lines = ",\n".join(f'"{name}": {json.dumps(node)}' for name, node in chosen.items())
        EXCERPT.write_text(f'{{"source": "{source}",\n"nodes": {{\n{lines}\n}}}}\n', "utf-8")
    wrong = 0
    with TemporaryDirectory() as folder:
        for name, node in chosen.items():
            told, right = plan_hardware(Path(folder), name, node), describe_node(node)
            print(f"{name:<40} {'ok   ' if told == right else 'WRONG'} {told}")
            wrong += told != right
    print(f"{len(chosen)} plans, {wrong} with wrong facts")
    known = load_reference()
    differing = [
        name for name, node in nodes.items() if _describe(known, name) != describe_node(node)
    ]
    print(f"{len(nodes)} nodes in the reference data of {known.date}, {len(differing)} differ")
    print("\n".join(differing))


def _describe(known: Reference, name: str) -> str:
    parsed = parse_server(name)
    cluster = known.by_name.get(parsed[0]) if parsed else None
    kinds = cluster.hardware_of([parsed[1]]) if cluster and parsed else ()
    return format_hardware(kinds[0]) if kinds else "unknown"


if __name__ == "__main__":
    main()
