"""Programs that a scenario runs, for `laggard plan`: tasks, roles, service classes and managers.

A scenario is a program of its author, so a reader of a plan sees what it would execute. Only the
files are read. Nothing is imported or started, and no template is expanded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Literal

from laggard.core.errors import escape_unprintable
from laggard.core.run_schema import Record
from laggard.core.text.text_columns import align_columns
from laggard.core.yaml_source import KeyPath, YamlSource, YamlValue, to_json
from laggard.layers_services.e2clab.managers import list_managers
from laggard.layers_services.e2clab.play_tasks import BLOCKS, STAGES, PlayTask, iterate_tasks
from laggard.layers_services.e2clab.services import registered_classes
from laggard.layers_services.model import LayersServices

MOST_COMMAND = 100
"""Most characters of a command in the text of a plan; JSON has the whole command."""

_MOST_NAME = 60
# All other keys of a task are modules; thus a module that is unknown here is shown too.
_TASK_KEYWORDS = frozenset(
    {"any_errors_fatal", "args", "async", "become", "become_exe", "become_flags", "become_method",
     "become_user", "changed_when", "check_mode", "collections", "connection", "debugger", "delay",
     "delegate_facts", "delegate_to", "diff", "environment", "failed_when", "ignore_errors",
     "ignore_unreachable", "listen", "loop", "loop_control", "module_defaults", "name", "no_log",
     "notify", "poll", "port", "register", "remote_user", "retries", "run_once", "tags",
     "throttle", "timeout", "until", "vars", "when"}
)  # fmt: skip


class PlannedTask(Record):
    """Ansible task or role of `workflow.yaml`.

    Attributes:
        where: file and line.
        stage: stage of the play; `every stage` for keywords of Ansible such as `pre_tasks`.
        hosts: host pattern of the play, or the machine that the task is delegated to.
        module: Ansible module, such as `shell`; `role` for a role of the play.
        command: command line, role name or arguments, as written.
    """

    where: str
    stage: str
    hosts: str
    module: str
    command: str


class PlannedClass(Record):
    """E2Clab class of a service or manager.

    Attributes:
        where: file and line.
        kind: whether it deploys a service or is a manager.
        name: name of the service, or key of the manager with its type.
        module: Python module of the class.
        runs: False if the testbed does not run it.
    """

    where: str
    kind: Literal["service", "manager"]
    name: str
    module: str
    runs: bool


class PlannedProgram(Record):
    """Everything that a scenario's E2Clab files execute."""

    tasks: tuple[PlannedTask, ...] = ()
    classes: tuple[PlannedClass, ...] = ()

    def format_lines(self) -> Iterator[str]:
        """Yield the tasks and classes as lines of text."""
        if self.tasks:
            yield "tasks of workflow.yaml"
            yield from align_columns([_format_task(task) for task in self.tasks])
        if self.classes:
            yield "classes of E2Clab"
            yield from align_columns([_format_class(each) for each in self.classes])


def list_program(
    layers: LayersServices,
    layers_source: YamlSource,
    workflow_source: YamlSource,
    *,
    own_machines: bool,
    registered: frozenset[str] | None = None,
) -> PlannedProgram:
    """List what the E2Clab files of a scenario execute.

    Args:
        layers: the validated `layers_services.yaml`
        layers_source: its source
        workflow_source: source of the validated `workflow.yaml`
        own_machines: True if hosts are machines of their own, on which classes run
        registered: names of users' service classes; by default those of the installed E2Clab
    """
    known = registered_classes() if registered is None else registered
    return PlannedProgram(
        tasks=tuple(_list_tasks(workflow_source)),
        classes=(
            *_list_service_classes(layers, layers_source, known, own_machines),
            *_list_manager_classes(layers, layers_source, own_machines),
        ),
    )


def _list_tasks(source: YamlSource) -> Iterator[PlannedTask]:
    for each in iterate_tasks(source):
        for module, command in _list_modules(each):
            yield PlannedTask(
                where=_format_place(source, each.key),
                stage=each.stage if each.stage in STAGES else "every stage",
                hosts=each.target,
                module=module,
                command=command,
            )


def _list_modules(each: PlayTask) -> Iterator[tuple[str, str]]:
    """Yield the modules of a task with their arguments, or the name of a role."""
    task = each.task
    if each.stage == "roles":
        yield "role", _format_value(task.get("role", task.get("name")))
        return
    arguments = task.get("args")
    for key, value in task.items():
        name = str(key)
        if name in _TASK_KEYWORDS or name in BLOCKS or name.startswith("with_"):
            continue
        parts = [_format_value(part) for part in (value, arguments) if part is not None]
        yield name, " ".join(part for part in parts if part)


def _format_value(value: YamlValue) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return " ".join(f"{key}={_format_value(part)}" for key, part in value.items())
    return json.dumps(to_json(value), ensure_ascii=False)


def _list_service_classes(
    layers: LayersServices, source: YamlSource, known: frozenset[str], own_machines: bool
) -> Iterator[PlannedClass]:
    for i, layer in enumerate(layers.layers):
        for j, service in enumerate(layer.services):
            if service.name in known:
                yield PlannedClass(
                    where=_format_place(source, ("layers", i, "services", j, "name")),
                    kind="service",
                    name=f"{layer.name}.{service.name}",
                    module=f"e2clab.services.plugins.{service.name}",
                    runs=own_machines,
                )


def _list_manager_classes(
    layers: LayersServices, source: YamlSource, own_machines: bool
) -> Iterator[PlannedClass]:
    for name, settings in list_managers(layers).items():
        kind = settings.get("type")
        yield PlannedClass(
            where=_format_place(source, (name,)),
            kind="manager",
            name=f"{name} ({kind})" if isinstance(kind, str) else name,
            module="e2clab.managers",
            runs=own_machines,
        )


def _format_place(source: YamlSource, key: KeyPath) -> str:
    problem = source.locate_problem(key, "")
    path = escape_unprintable(problem.path)
    return f"{path}:{problem.line}" if problem.line else path


def _format_task(task: PlannedTask) -> tuple[str, ...]:
    names = (_shorten(name, _MOST_NAME) for name in (task.hosts, task.module))
    return (task.where, task.stage, *names, _shorten(task.command, MOST_COMMAND))


def _format_class(planned: PlannedClass) -> tuple[str, ...]:
    state = "" if planned.runs else "not run on this testbed"
    name = _shorten(planned.name, _MOST_NAME)
    return (planned.where, planned.kind, name, _shorten(planned.module, MOST_COMMAND), state)


def _shorten(text: str, most: int) -> str:
    """Return a text on one line, of at most about so many characters and the number of all."""
    # Cut before escaping too, since an escape is up to ten times as long as its character.
    shown = escape_unprintable(text[: most + 1])
    if len(shown) <= most:
        return shown
    return f"{shown[:most]}... ({len(text)} characters)"
