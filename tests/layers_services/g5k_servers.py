"""Facts of servers as the testbed's own documents tell them, and as a plan tells them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from laggard.cli.main import main
from tests.scenario.scenario_folders import template, write

EXCERPT = Path(__file__).with_name("g5k_servers.json")
"""Documents of some nodes, cut by `benchmarks/g5k_servers.py` to the facts that a plan shows."""

_LAYERS = """\
environment:
  g5k: {{queue: {queue}, job_type: [{types}]}}
layers:
  - name: edge
    services: [{{name: trainer, servers: [{server}]}}]
"""

Json = Mapping[str, Any]  # documents of the testbed have no schema here


def describe_node(node: Json) -> str:
    """Describe a node's hardware from its document, in the words of a plan."""
    gpus = Counter(device["model"] for device in node.get("gpu_devices", {}).values())
    rates: dict[str, float] = {}
    for adapter in node["network_adapters"]:
        usable = adapter.get("enabled") and adapter.get("mountable")
        primary = adapter["interface"] != "Ethernet" or adapter.get("mounted")
        if usable and primary and not adapter.get("management"):
            kind = adapter["interface"]
            rates[kind] = max(rates.get(kind, 0), (adapter.get("rate") or 0) / 1e9)
    parts = [f"{node['architecture']['nb_cores']} cores"]
    parts.append(f"{node['main_memory']['ram_size'] / (1 << 30):.0f} GiB")
    parts += [f"{count} x {model}" for model, count in gpus.items()]
    parts.append(f"{rates['Ethernet']:g} Gbit/s")
    parts += [
        f"{kind} {rates[kind]:g} Gbit/s" for kind in ("InfiniBand", "Omni-Path") if rates.get(kind)
    ]
    return ", ".join([*parts, node["architecture"]["platform_type"]])


def plan_hardware(folder: Path, server: str, node: Json) -> str:
    """Return the hardware of one named server according to `laggard plan --on g5k`."""
    known = ("default", "production", "besteffort", "testing")
    queue = next((each for each in node["queues"] if each in known), "besteffort")
    layers = _LAYERS.format(queue=queue, types="exotic" if node["exotic"] else "", server=server)
    empty = {"network": "", "workflow": "[]", "heterogeneity": ""}
    workload = "model: mlp\ndataset: digits\n"
    write(folder / "named", template() | empty | {"layers_services": layers, "workload": workload})
    result = CliRunner().invoke(
        main, ["plan", str(folder / "named"), "--on", "g5k", "--json"], env={"HOME": str(folder)}
    )
    assert result.exit_code == 0, result.output
    machines = json.loads(result.stdout)["reservation"]["machines"]
    hardware: str = machines[0]["hardware"]
    return hardware.removesuffix(", metered")
