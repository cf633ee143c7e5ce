"""Links at the ends of what can be asked for: whether they are held, and how long that takes to see.

    python benchmarks/extreme_links.py [DELAY:RATE:LOSS ...]

Each link joins two hosts, in both directions. `laggard emulate` starts it and verifies it. The
expected time is what `laggard check` computes. The default links take five minutes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from laggard.core.virtual_time import Dilation
from laggard.network_emulation.fidelity.link_tasks import estimate_duration_s
from laggard.scenario.load import load_scenario

LINKS = ("1ms:10mbit:100%", "200ms:1gbit:0%", "10ms:20kbit:0%", "10ms:1kbit:0%", "10s:1mbit:0%")
# A third of a core for each host needs no dilation on two cores.
FILES = {
    "layers_services": """\
environment: {job_name: extreme, g5k: {cluster: paradoxe}}
layers:
  - {name: cloud, services: [{name: node, quantity: 1}]}
  - {name: edge, services: [{name: node, quantity: 1}]}
""",
    "workflow": "[]\n",
    "heterogeneity": "deterministic:\n  - {hosts: '*', cpu: 33%}\n",
}
RULE = "{{src: cloud.*, dst: edge.*, delay: {}, rate: {}, loss: {}, symmetric: true}}"


def measure(link: str, folder: Path) -> tuple[float, float, str]:
    """Return expected and measured seconds of the links' verification, and what did not hold."""
    folder.mkdir()
    files = {**FILES, "network": f"networks: [{RULE.format(*link.split(':'))}]\n"}
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    expected_s = estimate_duration_s(load_scenario(folder).links, Dilation())
    command = [sys.executable, "-m", "laggard", "emulate", str(folder), "--for", "1s", "--json"]
    options = ["--runs", str(folder / "runs"), "--fidelity", "record"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    record = json.loads(done.stdout.splitlines()[-1])
    seconds = {stage["name"]: stage["seconds"] for stage in record["stages"]}
    checks = json.loads((Path(record["folder"]) / "fidelity.json").read_text())
    of_links = [check for check in checks if check["kind"] in {"rtt", "rate", "loss"}]
    missed = [
        f"{check['kind']} {check['measured']:.4g} {check['unit']}"
        for check in of_links
        if not check["ok"]
    ]
    verdict = "held" if not missed else f"missed: {', '.join(missed)}"
    return expected_s, seconds["verify links"], f"{verdict} ({len(of_links)} checks)"


def main() -> None:
    """Print a table with one row per link."""
    print("| link | expected s | measured s | verdict |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for number, link in enumerate(sys.argv[1:] or LINKS):
            expected_s, measured_s, verdict = measure(link, Path(folder) / f"link{number}")
            name = link.replace(":", ", ")
            print(f"| {name} | {expected_s:.1f} | {measured_s:.1f} | {verdict} |", flush=True)


if __name__ == "__main__":
    main()
