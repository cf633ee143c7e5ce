"""EnOSlib, Ansible and E2Clab on hosts that are namespaces."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.users import Runner

HEAD = """
    import json, os, sys
    from pathlib import Path
    from laggard.core.errors import LaggardError
    from laggard.layers_services.compile import compile_hosts
    from laggard.layers_services.e2clab.workflow import run_workflow
    from laggard.layers_services.local import namespaces, sandbox
    from laggard.layers_services.local.provider import ansible_workspace, enoslib_roles, use_namespace_connection
    from laggard.layers_services.model import LayersServices

    hosts = compile_hosts(LayersServices.model_validate({
        "environment": {"g5k": {}},
        "layers": [
            {"name": "cloud", "services": [{"name": "server"}]},
            {"name": "edge", "services": [{"name": "trainer", "quantity": 2}]},
        ],
    }))
    here = Path.cwd()

    def inside(function):
        def entered():
            namespaces.create_namespaces(hosts, "bridge")
            use_namespace_connection()
            function()
            return 0
        return sandbox.run_in_sandbox(entered)
"""


@pytest.mark.long
def test_enoslib_runs_commands_in_the_namespaces(runner: Runner) -> None:
    result = runner.run(
        HEAD
        + """
    def function():
        import enoslib
        roles, networks = enoslib_roles(hosts)
        before = os.getcwd()
        with ansible_workspace():
            got = enoslib.run_command("true; hostname; cat /proc/net/dev | grep -c eth0; readlink /proc/self/ns/net", roles=roles)
        addresses = {host.alias: str(host.filter_addresses(networks["experiment"])[0].ip) for host in roles.all()}
        seen = {each.host: each.stdout.split() for each in got}
        print(json.dumps([seen, addresses, os.readlink("/proc/self/ns/net"), before == os.getcwd()]), flush=True)
    inside(function)
""",
        timeout_s=480,
    )
    assert result.stdout, result.stderr
    seen, addresses, outside, back = json.loads(result.stdout.splitlines()[-1])
    assert {name: said[:2] for name, said in seen.items()} == {
        name: [name, "1"] for name in addresses
    }
    assert len({said[2] for said in seen.values()} | {outside}) == 4
    assert addresses == {
        "cloud.server.1.1": "10.77.0.1/16",
        "edge.trainer.1.1": "10.77.0.2/16",
        "edge.trainer.1.2": "10.77.0.3/16",
    }
    assert back


@pytest.mark.long
def test_netem_finds_the_devices_without_asking_the_hosts(own_runner: Runner) -> None:
    result = own_runner.run(
        HEAD
        + """
    use_namespace_connection()
    import enoslib
    roles, networks = enoslib_roles(hosts)
    netem = enoslib.NetemHTB()
    edge = [roles[host.name][0] for host in hosts[1:]]
    netem.add_constraints(edge, roles["cloud"], delay="10ms", rate="1gbit", symmetric=True)
    print(len(netem.sources), sum(len(source.constraints) for source in netem.sources.values()))
"""
    )
    assert result.stdout.split() == ["3", "4"], result.stderr


WORKFLOW = """
- hosts: edge.*
  gather_facts: false
  depends_on:
  - {service_selector: "cloud.*", grouping: round_robin, prefix: server}
  prepare:
  - shell: "echo {{ _self._id }} {{ server.url }}; hostname > {{ scenario_dir }}/{{ inventory_hostname }}"
    register: said
  - copy: {content: "{{ said.stdout }} {{ working_dir == artifacts_dir }}", dest: "{{ scenario_dir }}/{{ inventory_hostname }}.said"}
    become: true
  finalize:
  - shell: "echo broken >&2; exit 3"
"""


@pytest.mark.long
def test_a_workflow_runs_as_e2clab_runs_it(runner: Runner) -> None:
    (runner.folder / "workflow.yaml").write_text(WORKFLOW)
    result = runner.run(
        HEAD
        + """
    def function():
        roles, networks = enoslib_roles(hosts)
        print([run_workflow(here, here / "workflow.yaml", stage, roles, hosts, here) for stage in ("prepare", "launch")], flush=True)
        try:
            run_workflow(here, here / "workflow.yaml", "finalize", roles, hosts, here, log=here / "failed.jsonl")
        except LaggardError as error:
            print("LaggardError:", error, flush=True)
    inside(function)
""",
        timeout_s=480,
    )
    assert "[True, False]" in result.stdout, result.stderr
    for number in (1, 2):
        name = f"edge.trainer.1.{number}"
        assert (runner.folder / name).read_text() == f"{name}\n"
        assert (runner.folder / f"{name}.said").read_text() == f"2_1_{number} 10.77.0.1 True"
    said = result.stdout.partition("LaggardError:")[2]
    assert "stage `finalize`" in said
    assert said.rstrip().splitlines()[1:] == [
        "  command: echo broken >&2; exit 3",
        "  last lines:",
        "    broken",
        f"  full record: {runner.folder / 'failed.jsonl'}",
    ]
    assert "edge.trainer.1.1, edge.trainer.1.2: task `shell` failed with exit status 3" in said
    assert "Failed hosts" not in result.stderr
    records = (runner.folder / "failed.jsonl").read_text().splitlines()
    assert sorted(json.loads(record)["host"] for record in records) == [
        "edge.trainer.1.1",
        "edge.trainer.1.2",
    ]


def test_an_empty_workflow_imports_nothing(own_runner: Runner) -> None:
    (own_runner.folder / "workflow.yaml").write_text("[]\n")
    result = own_runner.run(
        HEAD
        + """
    print(run_workflow(here, here / "workflow.yaml", "launch", None, hosts, here), "e2clab" in sys.modules, "enoslib" in sys.modules)
"""
    )
    assert result.stdout == "False False False\n", result.stderr


def test_settings_come_before_ansible(own_runner: Runner) -> None:
    result = own_runner.run(
        HEAD
        + """
    import ansible.constants
    try:
        use_namespace_connection()
    except LaggardError as error:
        print(error)
"""
    )
    assert "Ansible was imported before" in result.stdout, result.stderr


@pytest.mark.long
def test_a_host_without_namespace_is_unreachable_rather_than_the_machine(
    own_runner: Runner,
) -> None:
    result = own_runner.run(
        HEAD
        + """
    def function():
        use_namespace_connection()
        import enoslib
        roles, networks = enoslib_roles(hosts)
        with ansible_workspace():
            try:
                enoslib.run_command("touch /run/leaked", roles=roles)
            except enoslib.errors.EnosUnreachableHostsError as error:
                print(len(error.hosts), os.path.exists("/run/leaked"), flush=True)
        return 0
    sandbox.run_in_sandbox(function)
""",
        timeout_s=480,
    )
    assert "3 False" in result.stdout, result.stderr
