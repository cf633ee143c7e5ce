"""Several network rules for one source, deployed by E2Clab and by Laggard.

    python benchmarks/e2clab_rules_netem.py

It shows which rules are in effect after E2Clab's own `Network.deploy()` and after Laggard's single
deployment. Both run under a real netem, in Debian's user-mode kernel, on the same three hosts with
the same EnOSlib roles, one after the other. E2Clab deploys one `NetemHTB` per rule, and each
deployment first deletes the root queueing discipline.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TypedDict, cast

REPOSITORY = Path(__file__).resolve().parents[1]

INSIDE = """
    import subprocess
    import time
    sys.path.insert(0, CONTINUUM)
    import continuum as c
    from laggard.layers_services.local.namespaces import create_namespaces
    from laggard.layers_services.local.provider import ansible_workspace, enoslib_roles, use_namespace_connection
    use_namespace_connection()
    hosts = c.hosts(cloud=1, fog=1, edge=1)
    cloud, fog, edge = hosts
    namespaces = create_namespaces(hosts, "bridge")
    roles, networks = enoslib_roles(hosts)
    from e2clab.network import Network as E2clabNetwork
    from laggard.network_emulation.links.plan_links import plan_links
    from laggard.network_emulation.model import Heterogeneity, Network
    from laggard.network_emulation.links.netem import NetemBackend
    from laggard.layers_services.e2clab.yaml_files import parse_e2clab_yaml
    from laggard.core.corrections.model_problems import validate_model

    def rules(symmetric):
        lines = ["networks:"]
        for dst, delay in (("fog", "10ms"), ("cloud", "40ms")):
            lines.append(f'- {{src: "edge.*", dst: "{dst}.*", delay: {delay}, rate: 100mbit, symmetric: {symmetric}}}')
        path = pathlib.Path(f"network-{symmetric}.yaml").absolute()
        path.write_text("\\n".join(lines))
        return path

    def measured(deploy):
        began = time.monotonic()
        with ansible_workspace():
            close = deploy()
        seconds = time.monotonic() - began
        trips = {"fog": c.rtt_ms(edge, fog), "cloud": c.rtt_ms(edge, cloud)}
        with ansible_workspace():
            close()
        return {"seconds": seconds, "rtt_ms": trips}

    def remove():
        for host in hosts:
            subprocess.run(("ip", "netns", "exec", host.name, "tc", "qdisc", "del", "dev", "eth0", "root"), check=False)

    def theirs(path):
        network = E2clabNetwork(path, roles, networks)
        network.prepare()
        network.deploy()
        return remove

    def ours(path):
        network = validate_model(parse_e2clab_yaml(path.read_bytes(), str(path)), Network)
        plan = plan_links(network, Heterogeneity(), hosts)
        return NetemBackend.start(plan, roles, networks, namespaces.ports).close

    found = []
    for symmetric in ("false", "true"):
        path = rules(symmetric)
        found.append({"symmetric": symmetric == "true", "e2clab": measured(lambda: theirs(path)), "laggard": measured(lambda: ours(path))})
    result(found)
"""

DELAYS_MS = {"fog": 10.0, "cloud": 40.0}


class Engine(TypedDict):
    """Duration of one engine's deployment, and round trips after it by tier."""

    seconds: float
    rtt_ms: dict[str, float]


class Comparison(TypedDict):
    """Measurements of both engines with the same rules."""

    symmetric: bool
    e2clab: Engine
    laggard: Engine


def compare(folder: Path, limit_s: float = 300.0) -> list[Comparison]:
    """Measure both engines, with rules of one direction and then of both.

    Args:
        folder: an empty folder.
        limit_s: time limit in seconds.
    """
    sys.path.insert(0, str(REPOSITORY))
    from tests.uml import kernel

    script = INSIDE.replace("CONTINUUM", repr(str(Path(kernel.__file__).parent)))
    return cast("list[Comparison]", kernel.boot(script, folder, limit_s=limit_s))


def rows(comparison: Comparison) -> list[str]:
    """Format the rows of the table, one per pair of tiers."""
    # A symmetric rule delays both directions, so a round trip has its delay twice.
    factor = 2 if comparison["symmetric"] else 1
    lines = []
    for tier, delay_ms in DELAYS_MS.items():
        asked = f"{delay_ms:g} ms {'each way' if factor == 2 else 'one way'}"
        measured = [f"{comparison[engine]['rtt_ms'][tier]:.1f}" for engine in ("e2clab", "laggard")]
        lines.append(
            f"| edge-{tier} | {asked} | {factor * delay_ms:.0f} | {' | '.join(measured)} |"
        )
    return lines


def main() -> None:
    """Print a table."""
    with tempfile.TemporaryDirectory() as folder:
        found = compare(Path(folder))
    print("| pair | rule | round trip requested, ms | E2Clab 3.7.0, ms | Laggard, ms |")
    print("|---|---|---|---|---|")
    for comparison in found:
        print("\n".join(rows(comparison)))
    for comparison in found:
        took = [
            f"{name} {comparison[engine]['seconds']:.1f} s"
            for name, engine in (("E2Clab", "e2clab"), ("Laggard", "laggard"))
        ]
        print(
            "\nduration of the deployment,"
            f" {'both directions' if comparison['symmetric'] else 'one direction'}:"
            f" {', '.join(took)}"
        )


if __name__ == "__main__":
    main()
