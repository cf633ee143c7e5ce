"""Execution of the plays of `workflow.yaml` by E2Clab's own `Workflow`, on any testbed's hosts.

E2Clab passes its information about each service to plays (`{{ _self.url }}`, `depends_on`).
`e2clab/services.py` has E2Clab's own `Service` classes register this information.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.core.corrections.model_problems import validate_model
from laggard.core.errors import DeploymentError
from laggard.core.hosts import Host
from laggard.layers_services.e2clab import workflow_env
from laggard.layers_services.e2clab.ansible_runs import failure_reason, working_in
from laggard.layers_services.e2clab.play_facts import can_see_facts
from laggard.layers_services.e2clab.play_tasks import Stage
from laggard.layers_services.e2clab.services import DeployedServices, register_hosts
from laggard.layers_services.e2clab.yaml_files import parse_e2clab_yaml
from laggard.layers_services.model import Workflow

if TYPE_CHECKING:
    from enoslib import Roles


@dataclass(frozen=True)
class _Job:
    """Inputs of E2Clab's `Workflow`; every path is absolute."""

    workflow_file: Path
    output_dir: Path
    scenario_dir: Path
    artifacts_dir: Path
    services: DeployedServices
    app_conf: str | None
    sets: Path
    variables: Mapping[str, object]
    log: Path | None


def run_workflow(
    scenario_dir: Path,
    workflow_file: Path,
    stage: Stage,
    roles: Roles,
    hosts: Sequence[Host],
    output_dir: Path,
    *,
    services: DeployedServices | None = None,
    app_conf: str | None = None,
    artifacts_dir: Path | None = None,
    workspace: Path | None = None,
    log: Path | None = None,
) -> bool:
    """Run one stage of a workflow as E2Clab does.

    E2Clab is not even imported when the stage has no task.

    Args:
        scenario_dir: value of `{{ scenario_dir }}` in plays
        workflow_file: the validated `workflow.yaml`
        stage: stage whose tasks are run in each play
        roles: EnOSlib roles of the hosts (`enoslib_roles`)
        hosts: the same hosts
        output_dir: value of `{{ working_dir }}` in finalize, and folder of
            `workflow-validate.out`; with `app_conf` and outside of prepare, its subfolder of that
            name is used instead
        services: services that `deploy_services` registered; None registers every host as E2Clab's
            `Default` service does
        app_conf: name of a set of variables in the `workflow_env.yaml` next to `workflow_file`,
            which launch and finalize see
        artifacts_dir: value of `{{ artifacts_dir }}` in plays, and of `{{ working_dir }}` except
            in finalize; None means `scenario_dir`
        workspace: current folder while Ansible runs; None selects the sandbox's own
        log: file to which the full records of failed tasks are appended; None keeps none

    Returns:
        True if the stage has tasks in any play.

    Raises:
        DeploymentError: a task failed or a host could not be reached
        ScenarioError: the file is not a valid workflow, or the set of variables does not exist
    """
    source = parse_e2clab_yaml(workflow_file.read_bytes(), str(workflow_file))
    workflow = validate_model(source, Workflow)
    sets = workflow_file.resolve().with_name(workflow_env.FILE)
    variables = {} if app_conf is None else workflow_env.variables_of(sets, app_conf)
    if not any(getattr(play, stage) for play in workflow.plays):
        return False
    job = _Job(
        workflow_file=workflow_file.resolve(),
        output_dir=output_dir.resolve(),
        scenario_dir=scenario_dir.resolve(),
        artifacts_dir=(artifacts_dir or scenario_dir).resolve(),
        services=_keep_first_hosts(
            register_hosts(roles, hosts) if services is None else services, hosts
        ),
        # E2Clab prepares once for all sets of variables, so prepare uses none.
        app_conf=None if stage == "prepare" else app_conf,
        sets=sets,
        variables=variables,
        log=log,
    )
    with working_in(workspace):
        _run_stage(job, stage)
    return True


def _keep_first_hosts(services: DeployedServices, hosts: Sequence[Host]) -> DeployedServices:
    """Return the services with roles of one host each, the first one of the scenario.

    E2Clab takes the first host of each role that a pattern selects. EnOSlib sorts the hosts of a
    role by address, as text (10.77.0.10 before 10.77.0.2), so that this would be an arbitrary one.
    """
    from enoslib import Roles

    order = {host.name: i for i, host in enumerate(hosts)}
    first = {
        role: [min(members, key=lambda member: order.get(member.alias, len(order)))]
        for role, members in services.roles.items()
        if members
    }
    return replace(services, roles=Roles(first))


def _run_stage(job: _Job, stage: Stage) -> None:
    from e2clab.constants import WorkflowTasks
    from e2clab.errors import E2clabError
    from e2clab.workflow import Workflow as E2clabWorkflow

    try:
        workflow = E2clabWorkflow(
            config=job.workflow_file,
            experiment_dir=job.output_dir,
            scenario_dir=job.scenario_dir,
            artifacts_dir=job.artifacts_dir,
            roles=job.services.roles,
            all_serv_extra_inf=job.services.information,
            app_conf=job.app_conf,
            env_config=job.sets,
        )
        for play in workflow.config:
            if not can_see_facts(play, job.variables, job.services.information):
                play["gather_facts"] = False
        workflow.run_task(WorkflowTasks(stage))
    except E2clabError as error:
        raise DeploymentError(
            f"{job.workflow_file}: stage `{stage}`: {failure_reason(error, job.log)}"
        ) from error
    except (LookupError, StopIteration) as error:
        # E2Clab does not check that a selector matches a registered service.
        raise DeploymentError(
            f"{job.workflow_file}: stage `{stage}`: E2Clab failed with {failure_reason(error)}."
            " Check `depends_on`: a `service_selector` must match registered services, as cloud.*"
            " does; the name of a layer alone does not"
        ) from error
