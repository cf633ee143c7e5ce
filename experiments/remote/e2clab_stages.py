"""What the user's own E2Clab files ask for beside training: services, managers, and the three
stages of the workflow.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from laggard.experiments.job import Journal
from laggard.experiments.remote.ground import Prepared
from laggard.experiments.scenario import Scenario
from laggard.layers_services.e2clab_bridge import Stage, run_workflow
from laggard.layers_services.e2clab_managers import RunningManagers, start_managers
from laggard.layers_services.e2clab_services import DeployedServices, deploy_services


@dataclass(frozen=True)
class E2clabStages:
    """The stages of one run, through E2Clab's own classes.

    Attributes:
        scenario: what is run.
        ready: its machines.
        journal: of the run.
        app_conf: the set of variables of `workflow_env.yaml` that plays see; None for none.
        services: as E2Clab deployed them.
        managers: those that run.
        workspace: where EnOSlib writes its playbooks.
    """

    scenario: Scenario
    ready: Prepared
    journal: Journal
    app_conf: str | None
    services: DeployedServices
    managers: RunningManagers
    workspace: Path

    def run(self, stage: Stage) -> None:
        """Run the workflow's tasks of a stage; a workflow without any costs nothing.

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
                self.ready.roles,
                self.scenario.hosts,
                self.workspace,
                services=self.services,
                app_conf=self.app_conf,
                workspace=self.workspace,
            )


@contextmanager
def e2clab_stages(
    scenario: Scenario, ready: Prepared, journal: Journal, app_conf: str | None
) -> Iterator[E2clabStages]:
    """Deploy services and managers; the managers' data comes home, and they are removed, at the
    end.

    Raises:
        DeploymentError: a service or a manager could not be deployed, or its data did not come
            home.
    """
    workspace = journal.folder.path / "workflow"
    workspace.mkdir(exist_ok=True)
    with journal.stage("services"):
        services = deploy_services(
            scenario.layers, ready.roles, scenario.hosts, run_plugins=True, workspace=workspace
        )
        managers = start_managers(
            scenario.layers,
            services.roles,
            ready.networks,
            scenario.folder,
            scenario.folder,
            workspace,
            jobs=journal.record.jobs,
            workspace=workspace,
        )
    try:
        yield E2clabStages(scenario, ready, journal, app_conf, services, managers, workspace)
    finally:
        if managers.names:
            with journal.stage("managers' data"):
                managers.finish()
