"""Services, managers and workflow stages of the user's own E2Clab files, beside training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from laggard.layers_services.e2clab.failed_tasks import LOG_NAME
from laggard.layers_services.e2clab.managers import RunningManagers, start_managers
from laggard.layers_services.e2clab.play_tasks import Stage
from laggard.layers_services.e2clab.services import DeployedServices, deploy_services
from laggard.layers_services.e2clab.workflow import run_workflow
from laggard.remote.provision import ProvisionedNodes
from laggard.run_folder.journal import Journal
from laggard.scenario.load import Scenario


@dataclass(frozen=True)
class E2clabStages:
    """Workflow stages of one run, executed by E2Clab's own classes.

    Attributes:
        scenario: scenario of the run.
        provisioned: machines of the run.
        journal: journal of the run.
        services: services that E2Clab deployed.
        managers: managers that are running.
        workspace: folder in which EnOSlib writes its playbooks.
    """

    scenario: Scenario
    provisioned: ProvisionedNodes
    journal: Journal
    services: DeployedServices
    managers: RunningManagers
    workspace: Path

    def run(self, stage: Stage) -> None:
        """Run the workflow's tasks of one stage; without such tasks, do nothing.

        Raises:
            DeploymentError: a task failed or a host could not be reached.
        """
        if not any(getattr(play, stage) for play in self.scenario.workflow.plays):
            return
        with self.journal.stage(f"workflow: {stage}"), self.managers.stage(stage):
            run_workflow(
                self.scenario.folder,
                self.journal.folder.scenario / "workflow.yaml",
                stage,
                self.provisioned.roles,
                self.scenario.hosts,
                self.workspace,
                services=self.services,
                app_conf=self.scenario.plays.app_conf,
                artifacts_dir=self.scenario.plays.artifacts,
                workspace=self.workspace,
                log=self.journal.folder.logs / LOG_NAME,
            )


@contextmanager
def deploy_e2clab_stages(
    scenario: Scenario, provisioned: ProvisionedNodes, journal: Journal
) -> Iterator[E2clabStages]:
    """Deploy services and managers, and fetch the managers' data at the end.

    The managers are removed when the context ends.

    Raises:
        DeploymentError: a service or a manager could not be deployed, or a manager's data could
            not be fetched.
    """
    workspace = journal.folder.path / "workflow"
    workspace.mkdir(exist_ok=True)
    log = journal.folder.logs / LOG_NAME
    with journal.stage("services"):
        services = deploy_services(
            scenario.layers,
            provisioned.roles,
            scenario.hosts,
            run_plugins=True,
            workspace=workspace,
            log=log,
        )
        managers = start_managers(
            scenario.layers,
            services.roles,
            provisioned.networks,
            scenario.folder,
            scenario.plays.artifacts,
            workspace,
            jobs=journal.record.jobs,
            workspace=workspace,
            log=log,
        )
    try:
        yield E2clabStages(scenario, provisioned, journal, services, managers, workspace)
    finally:
        if managers.names:
            with journal.stage("managers' data"):
                managers.finish()
