"""What `laggard plan` says that a scenario's E2Clab files would execute."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.corrections.model_problems import validate_model
from laggard.layers_services.e2clab.program import (
    MOST_COMMAND,
    PlannedProgram,
    PlannedTask,
    list_program,
)
from laggard.layers_services.e2clab.yaml_files import parse_e2clab_yaml
from laggard.layers_services.model import LayersServices

LAYERS = """\
environment:
  g5k: {cluster: parasilo}
monitoring:
  type: tig
layers:
- name: cloud
  services:
  - name: Flink
    roles: [monitoring, monitoring_service]
  - name: trainer
"""


def program_of(workflow: str, *, own_machines: bool = True) -> PlannedProgram:
    source = parse_e2clab_yaml(LAYERS, "layers_services.yaml")
    return list_program(
        validate_model(source, LayersServices),
        source,
        parse_e2clab_yaml(workflow, "workflow.yaml"),
        own_machines=own_machines,
        registered=frozenset({"Flink", "Other"}),
    )


def task(line: int, stage: str, hosts: str, module: str, command: str) -> PlannedTask:
    return PlannedTask(
        where=f"workflow.yaml:{line}", stage=stage, hosts=hosts, module=module, command=command
    )


@pytest.mark.parametrize(
    ("workflow", "expected"),
    [
        ("[]", ()),
        (
            "- hosts: edge.*\n  prepare:\n  - name: a name\n    shell: curl x | sh\n    become: true\n",
            (task(3, "prepare", "edge.*", "shell", "curl x | sh"),),
        ),
        (
            ("- hosts: a\n  launch:\n  - ansible.builtin.command:\n      argv: [rm, -r, /x]\n"
            "    args: {chdir: /y}\n"),
            (task(3, "launch", "a", "ansible.builtin.command", 'argv=["rm", "-r", "/x"] chdir=/y'),),
        ),
        (
            "- hosts: a\n  finalize:\n  - script: x.sh\n    delegate_to: localhost\n",
            (task(3, "finalize", "localhost", "script", "x.sh"),),
        ),
        (
            "- hosts: a\n  finalize:\n  - local_action: command reboot\n    with_items: [1]\n",
            (task(3, "finalize", "a", "local_action", "command reboot"),),
        ),
        (
            ("- hosts: a\n  prepare:\n  - block:\n    - raw: one\n    rescue:\n    - raw: two\n"
            "    always:\n    - block:\n      - raw: three\n"),
            (
                task(4, "prepare", "a", "raw", "one"),
                task(6, "prepare", "a", "raw", "two"),
                task(9, "prepare", "a", "raw", "three"),
            ),
        ),
        (
            ("- hosts: a\n  roles:\n  - docker\n  - {role: mine, x: 1}\n  handlers:\n  - raw: on change\n"
            "  launch:\n  - include_role: {name: his}\n"),
            (
                task(8, "launch", "a", "include_role", "name=his"),
                task(3, "every stage", "a", "role", "docker"),
                task(4, "every stage", "a", "role", "mine"),
                task(6, "every stage", "a", "raw", "on change"),
            ),
        ),
        (
            "- hosts: a\n  prepare:\n  - some.new.module: null\n  - ping:\n",
            (task(3, "prepare", "a", "some.new.module", ""), task(4, "prepare", "a", "ping", "")),
        ),
    ],
)  # fmt: skip
def test_every_task_and_role_is_listed(workflow: str, expected: tuple[PlannedTask, ...]) -> None:
    assert program_of(workflow).tasks == expected


@pytest.mark.parametrize("own_machines", [True, False])
def test_classes_of_services_and_managers_are_listed(own_machines: bool) -> None:
    program = program_of("[]", own_machines=own_machines)
    service, manager = program.classes
    assert (service.where, service.name, service.module, service.runs) == (
        "layers_services.yaml:8",
        "cloud.Flink",
        "e2clab.services.plugins.Flink",
        own_machines,
    )
    assert (manager.kind, manager.name, manager.module, manager.runs) == (
        "manager",
        "monitoring (tig)",
        "e2clab.managers",
        own_machines,
    )
    said = "\n".join(program.format_lines())
    assert ("not run on this testbed" in said) is not own_machines


@given(st.text(), st.text(), st.text())
def test_a_line_is_printable_and_bounded(command: str, hosts: str, module: str) -> None:
    program = PlannedProgram(tasks=(task(1, "launch", hosts, module, command),))
    title, line = program.format_lines()
    assert title == "tasks of workflow.yaml"
    assert line.isprintable()
    assert len(line) < MOST_COMMAND + 280


def test_a_long_command_is_shortened_in_the_text_only() -> None:
    long = "echo " + "x" * 1000
    program = program_of(f"- hosts: a\n  launch:\n  - shell: |-\n      {long}\n")
    assert program.tasks[0].command == long
    (_, line, *_) = program.format_lines()
    assert line.strip().startswith("workflow.yaml:3")
    assert line.endswith("xxx... (1005 characters)")
