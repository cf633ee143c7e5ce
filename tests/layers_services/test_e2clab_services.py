"""Users' own E2Clab service classes, registered by `e2clab services add` and deployed through
E2Clab's own code."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from laggard.core.corrections.model_problems import validate_model
from laggard.layers_services.e2clab.services import registered_classes, service_warnings
from laggard.layers_services.e2clab.yaml_files import parse_e2clab_yaml
from laggard.layers_services.model import LayersServices

if TYPE_CHECKING:
    from tests.users import Runner

SCENARIO = """\
environment:
  g5k: {cluster: parasilo}
layers:
- name: Cloud
  services:
  - {name: Flink, quantity: 3, env: {slots: 4}, image: flink, repeat: 1}
- name: edge
  services:
  - {name: trainer, quantity: 2}
  - {name: Sensor, env: {rate: 1}}
"""

CLASS = """
import enoslib
from e2clab.services import Service

class Flink(Service):
    def deploy(self):
        said = enoslib.run_command("hostname", roles=self.hosts[:1], gather_facts=False)
        extra = [{"said": said[0].stdout, "slots": self.env["slots"], "image": self.service_metadata["image"]}]
        self.register_service(hosts=[self.hosts[0]], service_port=8081, sub_service="Master", extra=extra)
        self.register_service(hosts=self.hosts[1:], service_port=6121, sub_service="worker")
"""

BROKEN = """
import enoslib
from e2clab.services import Service

class Broken(Service):
    def deploy(self):
        enoslib.run_command("echo no such disk >&2; exit 3", roles=self.hosts, gather_facts=False, task_name="format")
"""

HEAD = """
    import json, os, subprocess, sys
    from pathlib import Path
    from laggard.core.errors import LaggardError
    from laggard.layers_services.e2clab import services as e2clab_services
    from laggard.layers_services.compile import compile_hosts
    from laggard.layers_services.e2clab.workflow import run_workflow
    from laggard.layers_services.local import (namespaces, sandbox); from laggard.core import (linux)
    from laggard.layers_services.local.provider import enoslib_roles, use_namespace_connection
    from laggard.layers_services.model import LayersServices
    from laggard.layers_services.e2clab.yaml_files import parse_e2clab_yaml
    from laggard.core.corrections.model_problems import validate_model

    here = Path.cwd()

    def layers_of(file):
        return validate_model(parse_e2clab_yaml((here / file).read_bytes(), file), LayersServices)

    def own_registry():
        # A copy of E2Clab's folder of service classes in its place, in this sandbox only.
        import importlib.util, shutil
        folder = Path(importlib.util.find_spec("e2clab").submodule_search_locations[0], "services", "plugins")
        copy = Path("/run/plugins")
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("__pycache__"))
        linux.mount(str(copy), str(folder), "", linux.MS_BIND)

    def add(name):
        arguments = ("-c", "from e2clab.cli import main; main()", "services", "add", f"{here}/{name}.py")
        done = subprocess.run((sys.executable, *arguments), capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    def inside(function, hosts=()):
        def entered():
            own_registry()
            namespaces.create_namespaces(hosts, "bridge")
            use_namespace_connection()
            print("\\n" + json.dumps(function()), flush=True)
            return 0
        return sandbox.run_in_sandbox(entered)
"""


def answer(runner: Runner, script: str, **files: str) -> list[object]:
    for name, text in files.items():
        (runner.folder / name.replace("_DOT_", ".")).write_text(text)
    result = runner.run(HEAD + script, timeout_s=480)
    lines = [line for line in result.stdout.splitlines() if line.startswith("[")]
    assert lines, result.stdout + result.stderr
    value = json.loads(lines[-1])
    assert isinstance(value, list)
    return value


WORKFLOW = """
- hosts: cloud.flink.*.master.*
  gather_facts: false
  depends_on:
  - {service_selector: "cloud.flink.1.worker.*", grouping: aggregate, prefix: worker}
  - {service_selector: "cloud.flink.1.worker.*", grouping: asarray, prefix: ids}
  prepare:
  - shell: "echo {{ _self.said }} {{ _self.url }} {{ _self.slots }} {{ worker1_1.url }} {{ worker1_2.url }} {{ ids }} > {{ scenario_dir }}/{{ _self._id }}"
- hosts: edge.trainer.*
  gather_facts: false
  depends_on:
  - {service_selector: "cloud.flink.*.master.*", grouping: round_robin, prefix: flink}
  - {service_selector: "edge.trainer.*", grouping: address_match, prefix: me}
  prepare:
  - shell: "echo {{ flink.said }} {{ flink.image }} {{ me._id == _self._id }} > {{ scenario_dir }}/{{ inventory_hostname }}"
"""


@pytest.mark.long
def test_plays_see_what_a_users_own_class_registers(runner: Runner) -> None:
    keys, addresses, again = answer(
        runner,
        """
    layers = layers_of("layers_services.yaml")
    hosts = compile_hosts(layers)
    def function():
        add("Flink")
        roles, networks = enoslib_roles(hosts)
        services = e2clab_services.deploy_services(layers, roles, hosts, run_plugins=True)
        ran = run_workflow(here, here / "workflow.yaml", "prepare", roles, hosts, here, services=services)
        assert ran
        keys = [key for key in services.roles if key.count(".") > 2]
        return [keys, {key: each["__address__"] for key, each in services.information.items()}, "cloud.flink.1.1" in services.roles]
    inside(function, hosts)
""",
        layers_services_DOT_yaml=SCENARIO,
        workflow_DOT_yaml=WORKFLOW,
        Flink_DOT_py=CLASS,
    )
    assert isinstance(addresses, dict)
    assert set(addresses) == {
        *(f"cloud.flink.{i}.{sub}" for i in (1, 2) for sub in ("master.1", "worker.1", "worker.2")),
        "edge.trainer.1.1", "edge.trainer.1.2", "edge.sensor.2.1",
    }  # fmt: skip
    assert set(addresses) == set(keys), "only what was registered has a key"  # type: ignore[call-overload]
    assert again is False
    assert addresses["cloud.flink.1.worker.2"] == "10.77.0.3"
    said = {path.name: path.read_text().strip() for path in runner.folder.glob("1_*")}
    workers = "10.77.0.2:6121 10.77.0.3:6121 [111, 112]"
    assert said["1_1_1"] == f"cloud.flink.1.1 10.77.0.1:8081 4 {workers}"
    assert said["1_2_1"] == f"cloud.flink.2.1 10.77.0.4:8081 4 {workers}"
    first, second = (
        (runner.folder / f"edge.trainer.1.{number}").read_text().strip() for number in (1, 2)
    )
    assert (first, second) == ("cloud.flink.1.1 flink True", "cloud.flink.2.1 flink True")


@pytest.mark.long
def test_metadata_are_e2clabs(own_runner: Runner) -> None:
    same, available = answer(
        own_runner,
        """
    layers = layers_of("layers_services.yaml")
    def function():
        add("Flink")
        import yaml
        from e2clab.config import InfrastructureConfig
        from e2clab.services import Service, get_available_services
        theirs = InfrastructureConfig(yaml.safe_load((here / "layers_services.yaml").read_text()))
        theirs.get_services_to_load()
        expected = [dict(service) for service in theirs.iterate_services()]
        seen = []
        def deploy(name, hosts, metadata, log=None):
            seen.append(dict(metadata))
            return Service(hosts, metadata)
        e2clab_services._deploy_service = deploy
        hosts = compile_hosts(layers)
        roles, networks = enoslib_roles(hosts)
        e2clab_services.deploy_services(layers, roles, hosts, run_plugins=True)
        assert seen == expected, (seen, expected)
        return [len(seen), sorted(e2clab_services.registered_classes()) == sorted(set(get_available_services()) - {"Default"})]
    inside(function)
""",
        layers_services_DOT_yaml=SCENARIO,
        Flink_DOT_py=CLASS,
    )
    assert (same, available) == (4, True)


@pytest.mark.long
def test_without_plugins_every_service_is_e2clabs_default(own_runner: Runner) -> None:
    (information,) = answer(
        own_runner,
        """
    layers = layers_of("layers_services.yaml")
    hosts = compile_hosts(layers)
    def function():
        add("Flink")
        roles, networks = enoslib_roles(hosts)
        services = e2clab_services.deploy_services(layers, roles, hosts, run_plugins=False)
        assert services.information == e2clab_services.register_hosts(roles, hosts).information
        assert list(services.roles) == list(roles)
        return [services.information["cloud.flink.1.3"]]
    inside(function)
""",
        layers_services_DOT_yaml=SCENARIO,
        Flink_DOT_py=CLASS,
    )
    assert isinstance(information, dict)
    assert (information["_id"], information["url"]) == ("1_1_3", "10.77.0.3")


@pytest.mark.long
def test_a_class_that_fails_is_told_with_its_service_host_and_task(own_runner: Runner) -> None:
    said = answer(
        own_runner,
        """
    text = "environment: {g5k: {}}\\nlayers: [{name: fog, services: [{name: CLASS, quantity: 1}]}]"
    def attempt(name):
        layers = validate_model(parse_e2clab_yaml(text.replace("CLASS", name), "layers"), LayersServices)
        hosts = compile_hosts(layers)
        roles, networks = enoslib_roles(hosts)
        try:
            e2clab_services.deploy_services(layers, roles, hosts, run_plugins=True)
        except LaggardError as error:
            return str(error)
    first = validate_model(parse_e2clab_yaml(text.replace("CLASS", "Broken"), "layers"), LayersServices)
    def function():
        add("Broken")
        Path("/run/plugins/Empty.py").write_text("")
        Path("/run/plugins/Typo.py").write_text("import nothing_of_that_name")
        return [attempt(name) for name in ("Broken", "Empty", "Typo")]
    inside(function, compile_hosts(first))
""",
        Broken_DOT_py=BROKEN,
    )
    broken, empty, typo = (str(each) for each in said)
    assert "service fog.Broken.1: deploy() of its class `Broken` failed" in broken
    assert "fog.broken.1.1: task `format` failed" in broken
    assert "no such disk" in broken
    assert "service class `Empty` cannot be loaded: its file does not define this class" in empty
    assert "No module named 'nothing_of_that_name'" in typo


@pytest.mark.long
@pytest.mark.parametrize("selector", ["cloud", "cloud.nobody.*"])
def test_a_selector_without_registered_services_is_told(own_runner: Runner, selector: str) -> None:
    (said,) = answer(
        own_runner,
        """
    layers = layers_of("layers_services.yaml")
    hosts = compile_hosts(layers)
    def function():
        roles, networks = enoslib_roles(hosts)
        try:
            run_workflow(here, here / "workflow.yaml", "prepare", roles, hosts, here)
        except LaggardError as error:
            return [str(error)]
    inside(function)
""",
        layers_services_DOT_yaml=SCENARIO,
        workflow_DOT_yaml=WORKFLOW.partition("- hosts: edge")[0]
        .replace("cloud.flink.*.master.*", "edge.*")
        .replace("cloud.flink.1.worker.*", selector)
        .replace("aggregate", "round_robin"),
    )
    assert "a `service_selector` must match registered services" in str(said)


SOURCE = parse_e2clab_yaml(SCENARIO, "layers_services.yaml")
LAYERS = validate_model(SOURCE, LayersServices)


@pytest.mark.parametrize(
    ("run_plugins", "registered", "expected"),
    [
        (True, {"Flink", "Sensor"}, []),
        (
            True,
            {"flink", "Sensor"},
            ["layers_services.yaml:6:37: Flink: `env` is read only by a service class `Flink`"],
        ),
        (True, set(), ["6:37: Flink: `env` is read only", "10:25: Sensor: `env` is read only"]),
        (
            False,
            {"Flink", "trainer"},
            [
                "6:12: Flink: E2Clab's class of this name does not run on `local`",
                "9:12: trainer: E2Clab's class of this name does not run",
                "10:25: Sensor: `env`",
            ],
        ),
    ],
)
def test_classes_that_will_not_run_are_named(
    run_plugins: bool, registered: set[str], expected: list[str]
) -> None:
    found = service_warnings(
        LAYERS, run_plugins=run_plugins, source=SOURCE, registered=frozenset(registered)
    )
    assert len(found) == len(expected), [str(problem) for problem in found]
    for problem, part in zip(found, expected, strict=True):
        assert part in str(problem)


def test_e2clab_comes_without_classes_of_its_own() -> None:
    assert "Default" not in registered_classes()
    assert "__init__" not in registered_classes()
