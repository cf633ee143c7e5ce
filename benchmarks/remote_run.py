"""Whole runs on remote machines, stage by stage: a stand-in Grid'5000 and an inventory.

    python benchmarks/remote_run.py

The stand-in has two sites; the inventory lists machines of one's own. The machines are network
namespaces with SSH servers. All runs use three such machines; the second run on the inventory
finds them prepared.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))


def on_grid5000(folder: Path) -> dict[str, object]:
    """Run on the stand-in, inside a sandbox.

    Returns:
        Seconds by stage, status, number of API calls, and jobs left.
    """
    from laggard.remote.provision import RemoteOptions
    from laggard.remote.run import run_remote
    from laggard.remote.testbeds.g5k import G5kTestbed
    from laggard.scenario.load import load_scenario
    from tests.testbed.stand_in import stand_in

    with stand_in(folder / "n", {"gemini": 2, "parasilo": 3}) as grid:
        home = folder / "home"
        home.mkdir()
        grid.write_account(home, timeout=5.0)
        own_ssh(home / ".ssh")
        os.environ["HOME"] = str(home)
        import enoslib

        enoslib.set_config(g5k_auto_jump=False)
        options = RemoteOptions(folder / "runs", G5kTestbed(), quiet=True)
        record, _ = run_remote(load_scenario(folder / "small"), options)
        stages = {stage.name: stage.seconds for stage in record.stages}
        left = len(grid.held_jobs())
        return {"g5k": stages, "status": record.status, "calls": len(grid.calls()), "left": left}


def on_own_machines(folder: Path) -> dict[str, object]:
    """Run twice on machines of an inventory, inside a sandbox, and return seconds by stage."""
    from laggard.remote.provision import RemoteOptions
    from laggard.remote.run import run_remote
    from laggard.remote.testbeds.ssh import SshTestbed
    from laggard.scenario.load import load_scenario
    from tests.testbed.nodes import NodeSpec, start_nodes

    own_ssh(folder / "ssh")
    specs = [NodeSpec(f"node-{i}.example.org", f"172.30.0.{i}", "home") for i in (1, 2, 3)]
    with start_nodes(specs, folder / "own") as nodes:
        key = str(nodes.node(specs[0].name).access.key)
        listed = [
            {"ssh": spec.name, "address": spec.address, "key": key, "site": "home"}
            for spec in specs
        ]
        (folder / "inventory.yaml").write_text(json.dumps({"machines": listed}))
        options = RemoteOptions(folder / "runs", SshTestbed(folder / "inventory.yaml"), quiet=True)
        found: dict[str, object] = {}
        for name in ("ssh", "ssh, again"):
            record, _ = run_remote(load_scenario(folder / "small"), options)
            found[name] = {stage.name: stage.seconds for stage in record.stages}
        return found


def own_ssh(folder: Path) -> None:
    """Keep the files that ssh writes out of the user's own folder."""
    from laggard.core import linux

    # ssh takes the home folder from the user database, not from HOME: hence the bind mount.
    folder.mkdir(parents=True, exist_ok=True)
    Path("/root/.ssh").mkdir(exist_ok=True)
    linux.mount(str(folder), "/root/.ssh", "", linux.MS_BIND)


def table(found: Mapping[str, object]) -> str:
    """Format the stages in order, one column per run."""
    runs = {
        name: stages
        for name in ("g5k", "ssh", "ssh, again")
        if isinstance(stages := found[name], dict)
    }
    stages = list(dict.fromkeys(stage for run in runs.values() for stage in run))
    lines = [f"| stage, s | {' | '.join(runs)} |", f"|---|{'---|' * len(runs)}"]
    lines += [
        f"| {s} | {' | '.join(f'{run[s]:.2f}' if s in run else '' for run in runs.values())} |"
        for s in stages
    ]
    lines.append(
        f"\nGrid'5000: {found['status']}, {found['calls']} API calls, {found['left']} jobs left"
    )
    return "\n".join(lines)


def main() -> int:
    """Print the table."""
    from laggard.layers_services.environment.wheels import Platform, default_cache, wheel_set
    from laggard.layers_services.local import sandbox
    from tests.remote.remote_scenario import SCENARIO

    wheel_set(
        Platform((sys.version_info[0], sys.version_info[1]), os.uname().machine, (2, 36))
    )  # download the wheels now, because the sandbox has no network
    # HOME changes in the sandbox, but the wheels are in the present user's cache.
    os.environ["XDG_CACHE_HOME"] = str(default_cache().parents[1])

    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "small").mkdir()
        for file, text in SCENARIO.items():
            (folder / "small" / file).write_text(text)
        for measure in (on_grid5000, on_own_machines):

            def answer(measure: Callable[[Path], dict[str, object]] = measure) -> int:
                (folder / "answer.json").write_text(json.dumps(measure(folder)))
                return 0

            if sandbox.run_in_sandbox(answer):
                return 1
            found |= json.loads((folder / "answer.json").read_text())
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
