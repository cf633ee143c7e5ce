"""Duration of each stage of one E2Clab scenario, under E2Clab's own engine and under Laggard.

    python benchmarks/e2clab_engine.py [repeats]

Both engines use the same hosts: network namespaces in a sandbox. E2Clab has no provider for
existing hosts, and its list of providers is closed. So its `Experiment` receives EnOSlib's
`Static` provider, followed by the calls of E2Clab's Grid'5000 provider (`wait_for`, `sync_info`).
Everything else is E2Clab's own code: `Infrastructure`, `Network.deploy`, `Workflow`.

Not timed are E2Clab's ping test (`Network.validate`), the imports, and the creation of the
namespaces; Laggard's infrastructure stage includes the last. On a kernel without netem, E2Clab's
network stage applies rates only, while Laggard's applies delays, too.

Every stage of the workflow is one shell task on every host. The benchmark checks that each task
ran.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from three_layers import HOSTS, write_scenario

if TYPE_CHECKING:
    from enoslib import Networks, Roles

    from laggard.core.hosts import Host

STAGES = ("infrastructure", "network", "prepare", "launch", "finalize")
ENGINES: tuple[Engine, ...] = ("e2clab", "laggard")
Engine = Literal["e2clab", "laggard"]

TASK = 'shell: "echo {{ _self._id }} > {{ scenario_dir }}/done/STAGE-{{ inventory_hostname }}"'


def write_with_tasks(folder: Path, hosts: int) -> Path:
    """Write the scenario, with a task on every host in every stage of its workflow."""
    tasks = [f"  {stage}: [{{{TASK.replace('STAGE', stage)}}}]" for stage in STAGES[2:]]
    write_scenario(folder, hosts, {"workflow": "\n".join(['- hosts: "*.trainer.*"', *tasks, ""])})
    # E2Clab does not create its state folder itself.
    for name in ("done", ".e2c_state"):
        (folder / name).mkdir()
    return folder


class Watch:
    """Seconds of every stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage."""
        began = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - began


def by_e2clab(scenario: Path, watch: Watch) -> None:
    """Run all stages by E2Clab's engine, inside a sandbox."""
    from laggard.layers_services.local.namespaces import create_namespaces
    from laggard.layers_services.local.provider import ansible_workspace, use_namespace_connection

    hosts = _hosts(scenario)
    create_namespaces(hosts, "bridge")
    use_namespace_connection()
    import enoslib
    from e2clab import infra
    from e2clab.constants import Environment, WorkflowTasks
    from e2clab.experiment import Experiment
    from e2clab.network import Network
    from e2clab.providers import Provider

    from laggard.layers_services.compile import static_description

    description = static_description(hosts)
    for machine, host in zip(description["resources"]["machines"], hosts, strict=True):
        machine["roles"] = list(host.groups)  # E2Clab adds the keys of services

    class Static(Provider):  # type: ignore[misc]  # E2Clab ships no types
        def init(self) -> tuple[Roles, Networks]:
            roles, networks = enoslib.Static(enoslib.StaticConf.from_dictionary(description)).init()
            enoslib.wait_for(roles)
            return enoslib.sync_info(roles, networks), networks

    infra.load_providers = lambda _: {Environment.G5K: Static}
    enoslib.set_config(ansible_stdout="noop")
    with ansible_workspace():
        experiment = Experiment(scenario, scenario)
        with watch.stage("infrastructure"):
            experiment.infrastructure()
        with watch.stage("network"):
            network = Network(scenario / "network.yaml", experiment.roles, experiment.networks)
            network.prepare()
            network.deploy()
        with watch.stage("prepare"):
            experiment.application(WorkflowTasks.PREPARE)
        with watch.stage("launch"):
            experiment.application(WorkflowTasks.LAUNCH)
        with watch.stage("finalize"):
            experiment.finalize()


def by_laggard(scenario: Path, watch: Watch) -> None:
    """Run the same stages by Laggard, inside a sandbox."""
    from laggard.layers_services.local.provider import enoslib_roles, use_namespace_connection

    use_namespace_connection()
    import e2clab.services
    import e2clab.workflow  # noqa: F401 - imported here so that it is not timed

    from laggard.core.corrections.model_problems import validate_model
    from laggard.core.virtual_time import Dilation
    from laggard.layers_services.e2clab.play_tasks import STAGES as WORKFLOW_STAGES
    from laggard.layers_services.e2clab.services import deploy_services
    from laggard.layers_services.e2clab.workflow import run_workflow
    from laggard.layers_services.e2clab.yaml_files import parse_e2clab_yaml
    from laggard.layers_services.local.namespaces import create_namespaces
    from laggard.layers_services.model import LayersServices
    from laggard.network_emulation.links.plan_links import plan_links
    from laggard.network_emulation.links.userspace import UserspaceBackend
    from laggard.network_emulation.model import Heterogeneity, Network

    hosts = _hosts(scenario)
    layers = validate_model(
        parse_e2clab_yaml((scenario / "layers_services.yaml").read_bytes(), "layers"),
        LayersServices,
    )
    with watch.stage("infrastructure"):
        namespaces = create_namespaces(hosts, "tun")
        roles, _ = enoslib_roles(hosts)
        services = deploy_services(layers, roles, hosts, run_plugins=False)
    with watch.stage("network"):
        network = validate_model(
            parse_e2clab_yaml((scenario / "network.yaml").read_bytes(), "network"), Network
        )
        links = UserspaceBackend.start(
            plan_links(network, Heterogeneity(), hosts), namespaces.paths, Dilation(1.0)
        )
    for stage in WORKFLOW_STAGES:
        with watch.stage(stage):
            run_workflow(
                scenario,
                scenario / "workflow.yaml",
                stage,
                roles,
                hosts,
                scenario,
                services=services,
            )
    links.close()


def _hosts(scenario: Path) -> tuple[Host, ...]:
    from laggard.core.corrections.model_problems import validate_model
    from laggard.layers_services.compile import compile_hosts
    from laggard.layers_services.e2clab.yaml_files import parse_e2clab_yaml
    from laggard.layers_services.model import LayersServices

    path = scenario / "layers_services.yaml"
    return compile_hosts(
        validate_model(parse_e2clab_yaml(path.read_bytes(), str(path)), LayersServices)
    )


def inside(engine: Engine, scenario: Path) -> int:
    """Measure once and print the result as JSON."""
    watch = Watch()
    (by_e2clab if engine == "e2clab" else by_laggard)(scenario, watch)
    print("\n" + json.dumps(watch.seconds), flush=True)
    return 0


def measure(engine: Engine, hosts: int) -> dict[str, float]:
    """Measure one engine in a new process with a new scenario; return seconds by stage."""
    with tempfile.TemporaryDirectory() as folder:
        scenario = write_with_tasks(Path(folder) / f"hosts-{hosts}", hosts)
        command = [sys.executable, __file__, "--inside", engine, str(scenario)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        ran = len(list((scenario / "done").iterdir()))
        if done.returncode != 0 or ran != 3 * hosts:
            sys.exit(
                f"{engine}, {hosts} hosts: only {ran} of {3 * hosts} tasks ran; output of the"
                f" engine:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
            )
        seconds: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
        return seconds


def main() -> None:
    """Print a table of medians."""
    if sys.argv[1:2] == ["--inside"]:
        from laggard.layers_services.local import sandbox

        engine: Engine = "e2clab" if sys.argv[2] == "e2clab" else "laggard"
        sys.exit(sandbox.run_in_sandbox(lambda: inside(engine, Path(sys.argv[3]))))
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    measured: dict[tuple[int, Engine], list[dict[str, float]]] = {
        (h, e): [] for h in HOSTS for e in ENGINES
    }
    for _ in range(repeats):
        for (hosts, engine), seconds in measured.items():
            seconds.append(measure(engine, hosts))
    print(f"medians of {repeats} repetitions; load average {os.getloadavg()[0]:.1f} at the end\n")
    print(f"| hosts | engine | {' | '.join(STAGES)} | total, s |")
    print("|---" * (len(STAGES) + 3) + "|")
    for (hosts, engine), runs in measured.items():
        stages = [statistics.median(run[stage] for run in runs) for stage in STAGES]
        total = statistics.median(sum(run[stage] for stage in STAGES) for run in runs)
        name = "E2Clab 3.7.0" if engine == "e2clab" else "Laggard"
        print(f"| {hosts} | {name} | {' | '.join(f'{s:.2f}' for s in stages)} | {total:.1f} |")


if __name__ == "__main__":
    main()
