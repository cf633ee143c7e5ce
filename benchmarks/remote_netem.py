"""Whole run on SSH hosts whose kernel has netem: delay, jitter, loss and rate between them.

    python benchmarks/remote_netem.py

It runs inside Debian's user-mode kernel, which boots on this machine's files. Two nodes with SSH
servers of their own and the controller run in it. The kernel has one slow virtual processor for
all of them, so only the behavior of the links matters, not the duration of a stage.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TypedDict, cast

REPOSITORY = Path(__file__).resolve().parents[1]
MODULES = ("overlay",)

LAYERS = """
environment: {g5k: {cluster: parasilo}, walltime: "01:00:00"}
layers:
  - {name: cloud, services: [{name: trainer, quantity: 1}]}
  - {name: edge, services: [{name: trainer, quantity: 1}]}
"""
NETWORK = """
networks:
  - {src: "cloud.*", dst: "edge.*", delay: 25ms, rate: 10mbit, loss: 1%, symmetric: true}
"""
HETEROGENEITY = """
deterministic:
  - {src: "cloud.*", dst: "edge.*", jitter: 5ms, symmetric: true}
dynamic:
  - {at: 5s, for: 5s, src: "cloud.*", dst: "edge.*", delay: 60ms}
"""

INSIDE = """
    import subprocess
    sys.path.insert(0, REPOSITORY)
    import shutil
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0755,size=90%", "tmpfs", "/mnt"], check=True)
    shutil.copytree(f"{KEPT}/laggard", "/mnt/cache/laggard")
    os.environ["XDG_CACHE_HOME"] = "/mnt/cache"
    from laggard.layers_services.local import (sandbox); from laggard.core import (linux)

    def play(answer):
        here = pathlib.Path("/mnt/bed")
        (here / "small").mkdir(parents=True)
        os.chdir(here)
        from laggard.remote.provision import RemoteOptions
        from laggard.remote.testbeds.ssh import SshTestbed
        from laggard.remote.run import run_remote
        from laggard.scenario.load import load_scenario
        from tests.remote.remote_scenario import SCENARIO
        from tests.testbed.nodes import NodeSpec, start_nodes

        files = {
            **SCENARIO, "layers_services.yaml": LAYERS, "network.yaml": NETWORK, "heterogeneity.yaml": HETEROGENEITY,
        }
        for name, text in files.items():
            (here / "small" / name).write_text(text)
        specs = [NodeSpec(f"node-{i}.example.org", f"172.30.0.{i}", "home") for i in (1, 2)]
        with start_nodes(specs, here / "nodes") as nodes:
            key = str(nodes.node(specs[0].name).access.key)
            listed = [{"ssh": spec.name, "address": spec.address, "key": key, "site": "home"} for spec in specs]
            (here / "inventory.yaml").write_text(json.dumps({"machines": listed}))
            options = RemoteOptions(here / "runs", SshTestbed(here / "inventory.yaml"))
            scenario = load_scenario(here / "small", ("workload.stop.steps=40",))
            record, folder = run_remote(scenario, options)
            import pyarrow.parquet as pq

            def table(name):
                return pq.read_table(folder / name).to_pylist() if (folder / name).exists() else []

            found = {
                "record": record.model_dump(mode="json"),
                "checks": json.loads((folder / "fidelity.json").read_text()) if (folder / "fidelity.json").exists() else [],
                "events": table("events.parquet"),
                "left": [
                    subprocess.run(
                        ["ssh", *nodes.node(spec.name).access.ssh_arguments(), "tc", "qdisc", "show", "dev", "eth0"],
                        capture_output=True, text=True,
                    ).stdout
                    for spec in specs
                ],
            }
        with os.fdopen(answer, "w") as stream:
            json.dump(found, stream)
        return 0

    read, write = os.pipe()
    status = sandbox.run_in_sandbox(lambda: play(write))
    os.close(write)
    with os.fdopen(read) as stream:
        result(json.loads(stream.read() or json.dumps({"status": status})))
"""


class Answer(TypedDict):
    """Results of the script in the kernel."""

    record: dict[str, object]
    checks: list[dict[str, object]]
    events: list[dict[str, object]]
    left: list[str]


def main() -> int:
    """Print requested and measured values, and how the run ended."""
    sys.path.insert(0, str(REPOSITORY))
    from laggard.layers_services.environment.wheels import Platform, default_cache, wheel_set
    from tests.uml import kernel

    wheel_set(Platform((sys.version_info[0], sys.version_info[1]), os.uname().machine, (2, 36)))
    values = {
        "REPOSITORY": repr(str(REPOSITORY)),
        "KEPT": repr(str(default_cache().parents[1])),
        "LAYERS": repr(LAYERS),
        "NETWORK": repr(NETWORK),
        "HETEROGENEITY": repr(HETEROGENEITY),
    }
    script = INSIDE
    for name, value in values.items():
        script = script.replace(name, value)
    with tempfile.TemporaryDirectory() as folder:
        modules = (*kernel.LINK_MODULES, *MODULES)
        answer = cast(
            "Answer", kernel.boot(script, Path(folder), modules=modules, memory="10G", limit_s=1800)
        )
    print(told(answer))
    return 0 if answer["record"]["status"] == "done" else 1


def told(answer: Answer) -> str:
    """Format the results as a table and a few lines."""
    record = answer["record"]
    lines = [
        "| quantity | from | to | requested | measured | tolerance |",
        "|---|---|---|---|---|---|",
    ]
    for check in answer["checks"]:
        cells = (
            check[key]
            for key in ("kind", "src", "dst", "requested", "measured", "tolerance", "unit")
        )
        kind, src, dst, requested, measured, tolerance, unit = cells
        lines.append(
            f"| {kind} | {src} | {dst} | {requested:.4g} {unit} | {measured:.4g} |"
            f" {tolerance:.2g} |"
        )
    lines.append(
        "stages, s:"
        f" {[(s['name'], s['seconds']) for s in cast('list[dict[str, object]]', record['stages'])]}"
    )
    lines.append(f"\nrun: {record['status']} {record['error'] or ''}; outcome {record['outcome']}")
    lines.append(
        "events:"
        f" {[(e['kind'], e['quantity'], e['value'], e['requested_s'], e['effective_s']) for e in answer['events']]}"
    )
    lines.append(f"queueing disciplines left on the nodes: {answer['left']}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
