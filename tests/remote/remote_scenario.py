"""What tests of remote runs share: a small scenario, and a script's head that brings machines up
inside a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.users import Runner

REPOSITORY = Path(__file__).resolve().parents[2]

SCENARIO: Mapping[str, str] = {
    "layers_services.yaml": (
        """
environment: {g5k: {job_type: [exotic]}, walltime: "01:00:00"}
layers:
  - {name: cloud, services: [{name: trainer, quantity: 1, cluster: gemini}]}
  - {name: edge, services: [{name: trainer, quantity: 2, cluster: parasilo}]}
"""
    ),
    # A rate alone, which takes no netem: the development kernel shapes it for real.
    "network.yaml": (
        """
networks:
  - {src: "cloud.*", dst: "edge.*", delay: 0ms, rate: 60mbit, symmetric: true}
"""
    ),
    "workflow.yaml": "[]\n",
    "heterogeneity.yaml": (
        """
dynamic:
  - {at: 1s, for: 1s, src: "cloud.*", dst: "edge.*", rate: 20mbit}
"""
    ),
    "workload.yaml": (
        """
model: mlp
dataset: digits
batch_size: 192
placement: {workers: ["cloud.*", "edge.*"]}
evaluate_every: 5748
stop: {steps: 90}
seed: 1
"""
    ),
}

BOTTLENECK: Mapping[str, str] = {
    "layers_services.yaml": SCENARIO["layers_services.yaml"].replace(
        "quantity: 1, cluster: gemini", "quantity: 2, cluster: gemini"
    ),
    "heterogeneity.yaml": (
        """
deterministic:
  - {between: ["cloud.*", "edge.*"], shared: 40mbit}
"""
    ),
}
"""Two hosts in the cloud and two at the edge; all traffic between them shares one rate each way."""

HEAD = f"""
    import contextlib, json, os, subprocess, sys, threading, time
    from pathlib import Path
    sys.path.insert(0, {str(REPOSITORY)!r})
    from laggard.core import linux
    from laggard.layers_services.local import sandbox
    from laggard.layers_services.environment.wheels import Platform, default_cache, wheel_set
    from tests.testbed.installed import install_once

    here = Path.cwd() / "bed"
    here.mkdir()
    scenario_folder = Path.cwd() / "small"
    # While there is a network: the sandbox has none.
    wheels = wheel_set(Platform(sys.version_info[:2], os.uname().machine, (2, 36)))

    def private_ssh(folder):
        folder.mkdir(parents=True, exist_ok=True)
        Path("/root/.ssh").mkdir(exist_ok=True)
        linux.mount(str(folder), "/root/.ssh", "", linux.MS_BIND)

    CLI = '''
    import enoslib
    enoslib.set_config(g5k_auto_jump=False)
    from laggard.cli.main import main
    main()
    '''.replace("\\n    ", "\\n").strip()

    @contextlib.contextmanager
    def ssh_machines(offsets_s=(0.0, 0.0, 0.0), environment=None, bare=()):
        # Machines with SSH servers and clocks of their own, and the options of a run on them.
        from laggard.remote.provision import RemoteOptions
        from laggard.remote.testbeds.ssh import SshTestbed
        from tests.testbed.nodes import NodeSpec, start_nodes
        private_ssh(here / "ssh")
        names = [f"node-{{i}}.example.org" for i in range(1, 1 + len(offsets_s))]
        numbered = enumerate(zip(names, offsets_s), 1)
        specs = [NodeSpec(n, f"172.30.0.{{i}}", "home", clock_offset_s=o, bare=i in bare) for i, (n, o) in numbered]
        with start_nodes(specs, here / "nodes", environment=environment) as nodes:
            listed = [
                {{"ssh": n, "address": nodes.node(n).spec.address, "key": str(nodes.node(n).access.key), "site": "home"}}
                for n in names
            ]
            (here / "inventory.yaml").write_text(json.dumps({{"machines": listed}}))
            options = RemoteOptions(here / "runs", SshTestbed(here / "inventory.yaml"), quiet=True, fidelity="record", report=False)

            def on(name, *words):
                ssh = ["ssh", *nodes.node(name).access.ssh_arguments(), *words]
                return subprocess.run(ssh, capture_output=True, text=True).stdout

            yield nodes, names, options, on

    def enter_account(grid):
        # Become a user of the stand-in Grid'5000 whose wheels are cached.
        home = here / "home"
        home.mkdir()
        grid.write_account(home, timeout=5.0)
        private_ssh(home / ".ssh")
        os.environ["XDG_CACHE_HOME"] = str(default_cache().parents[1])
        os.environ |= {{"HOME": str(home), "ENOSLIB_G5K_AUTO_JUMP": "0", "PYTHONPATH": sys.path[0] + "/src"}}
        return home

    def run(options, *overrides, strike=None):
        from laggard.remote.run import run_remote
        from laggard.scenario.load import load_scenario
        scenario = load_scenario(scenario_folder, overrides)
        striker = threading.Thread(target=when_training, args=(strike,), daemon=True)
        if strike is not None:
            striker.start()
        record, folder = run_remote(scenario, options)
        return {{**record.model_dump(mode="json"), "folder": str(folder), "seconds": {{s.name: s.seconds for s in record.stages}}}}

    def when_training(strike):
        runs = here / "runs" / "small"
        before = set(runs.glob("2*")) if runs.exists() else set()
        while True:
            time.sleep(0.05)
            new = set(runs.glob("2*")) - before if runs.exists() else set()
            records = [json.loads((folder / "run.json").read_text()) for folder in new if (folder / "run.json").exists()]
            if any(record.get("first_step_s") for record in records):
                time.sleep(0.5)
                return strike()

    def inside(function):
        def entered():
            print(json.dumps(function()), flush=True)
            return 0
        sys.exit(sandbox.run_in_sandbox(entered))
"""


def run_script(
    runner: Runner, script: str, timeout_s: float, changed: Mapping[str, str] = MappingProxyType({})
) -> Any:
    """What the script printed last, as JSON; `changed` are other texts of scenario files."""
    folder = runner.folder / "small"
    folder.mkdir()
    for name, text in {**SCENARIO, **changed}.items():
        (folder / name).write_text(text)
    result = runner.run(HEAD + script, timeout_s=timeout_s)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-6000:]
    return json.loads(result.stdout.splitlines()[-1])


def measured_rates(folder: Path) -> list[tuple[float, float]]:
    """Requested and measured rates of the links between cloud and edge, in Mbit/s."""
    checks = json.loads((folder / "fidelity.json").read_text())
    return [
        (each["requested"], each["measured"])
        for each in checks
        if each["kind"] == "rate" and each["src"].partition(".")[0] != each["dst"].partition(".")[0]
    ]
