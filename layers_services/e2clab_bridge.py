"""Runs the plays of `workflow.yaml` through E2Clab's own `Workflow`, on the hosts of any testbed.

E2Clab hands plays what it knows of each service (`{{ _self.url }}`, `depends_on`); its own `Service.register_service` says
it here too. The code of service plugins is not run: namespaces share the machine's file system, on which a plugin would
install its software.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from laggard.errors import DeploymentError
from laggard.hosts import Host
from laggard.layers_services.local.provider import ansible_workspace
from laggard.layers_services.model import Workflow
from laggard.yaml_source import parse_yaml, validated

if TYPE_CHECKING:
    from enoslib import Roles


class _AnsibleRecord(Protocol):
    host: str
    task: str
    status: str
    payload: Mapping[str, object]


Stage = Literal["prepare", "launch", "finalize"]
STAGES: tuple[Stage, ...] = ("prepare", "launch", "finalize")


def run_workflow(
    scenario_dir: Path, workflow_file: Path, stage: Stage, roles: Roles, hosts: Sequence[Host], output_dir: Path
) -> bool:
    """Run one stage of a workflow as E2Clab does; does not even import E2Clab when the stage has no task.

    Args:
        scenario_dir: `{{ scenario_dir }}` and `{{ artifacts_dir }}` in plays; also the working directory of all but finalize.
        workflow_file: the validated `workflow.yaml`.
        stage: which tasks of each play.
        roles: EnOSlib roles of the hosts (`enoslib_roles`).
        hosts: the same hosts.
        output_dir: E2Clab's `{{ working_dir }}` of finalize; also gets `workflow-validate.out`.

    Returns:
        Whether there was anything to run.

    Raises:
        DeploymentError: a task failed or a host could not be reached.
        ScenarioError: the file is not a workflow.
    """
    workflow = validated(parse_yaml(workflow_file.read_bytes(), str(workflow_file)), Workflow)
    if not any(getattr(play, stage) for play in workflow.plays):
        return False
    _run(scenario_dir.resolve(), workflow_file.resolve(), stage, roles, hosts, output_dir.resolve())
    return True


def _run(
    scenario_dir: Path, workflow_file: Path, stage: Stage, roles: Roles, hosts: Sequence[Host], output_dir: Path
) -> None:
    from e2clab.constants import WorkflowTasks
    from e2clab.errors import E2clabError
    from e2clab.workflow import Workflow as E2clabWorkflow

    registered, information = register_services(roles, hosts)
    try:
        with ansible_workspace():
            workflow = E2clabWorkflow(
                config=workflow_file,
                experiment_dir=output_dir,
                scenario_dir=scenario_dir,
                artifacts_dir=scenario_dir,
                roles=registered,
                all_serv_extra_inf=information,
            )
            workflow.run_task(WorkflowTasks(stage))
    except E2clabError as error:
        raise DeploymentError(f"{workflow_file}: stage `{stage}`: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """What failed on which host, from the records that EnOSlib puts into its errors."""
    cause = error.args[0] if error.args else error
    records = getattr(cause, "hosts", ())
    return "\n".join(_failure(record) for record in records) or str(error)


def _failure(record: _AnsibleRecord) -> str:
    said = [str(record.payload[key]).strip() for key in ("msg", "stderr") if record.payload.get(key)]
    return f"{record.host}: task `{record.task}` {record.status.lower()}: {': '.join(said)}"


def register_services(roles: Roles, hosts: Sequence[Host]) -> tuple[Roles, Mapping[str, Mapping[str, str]]]:
    """Roles in which every service key's host carries what E2Clab tells plays about it, and all of that by service key.

    Args:
        roles: EnOSlib roles of the hosts.
        hosts: the same hosts, in compiled order.
    """
    from e2clab.services.plugins.Default import Default
    from enoslib import Roles

    registered = Roles(dict(roles))
    information: dict[str, Mapping[str, str]] = {}
    for (layer_id, service_id), group in itertools.groupby(hosts, lambda host: (host.layer_id, host.service_id)):
        members = list(group)
        metadata = {
            "_id": f"{layer_id}_{service_id}",
            "layer_name": members[0].layer,
            "layer_id": layer_id,
            "name": members[0].service,
            "service_id": service_id,
        }
        service = Default([roles[member.name][0] for member in members], metadata)
        service.deploy()
        information.update(service.service_extra_info)
        registered.update(service.service_roles)
    return registered, information
