"""One run of a Flower app on the emulated continuum, from its start to its report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from laggard.core.errors import InputError
from laggard.core.hosts import Host
from laggard.core.run_schema import RunRecord, StrategyRecord
from laggard.emulate.emulation import Application, run_experiment
from laggard.flower.app_programs import AppPrograms, read_flower_version
from laggard.flower.app_run import AppRun
from laggard.layers_services.local.namespaces import HostNamespaces
from laggard.layers_services.local.sandbox import is_hidden
from laggard.run.run_context import RunContext
from laggard.run.runner import RunOptions
from laggard.run_folder.collect import analyze_training, remove_streams, report_untrained_run
from laggard.scenario.load import Scenario
from laggard.workloads.specification.flower_app import FlowerApp


def run_flower(scenario: Scenario, options: RunOptions, for_s: float) -> tuple[RunRecord, Path]:
    """Run the Flower app of a scenario: its server on the first host, a client on every other.

    Args:
        scenario: loaded scenario, whose `workload.yaml` names an app.
        options: options of the run.
        for_s: virtual seconds between the end of the app and the begin of `finalize`.

    Returns:
        The final record, and the run folder, with its report.

    Raises:
        InputError: Flower cannot be started from the environment that the scenario names.
        PrerequisiteError: this machine lacks something; nothing was started.
        RunFolderError: the run folder cannot be created, or would be hidden in the sandbox.
    """
    app = scenario.application
    assert isinstance(app, FlowerApp)
    for key, path in (("flower", app.folder), ("python", Path(app.python))):
        if is_hidden(path):
            raise InputError(
                f"workload.{key}: {path} is hidden in the sandbox of a run, which has a folder of"
                " its own there — move it to another place"
            )
    version = read_flower_version(app)
    server, *clients = scenario.hosts
    return run_experiment(
        scenario, options, for_s, _FlowerApplication(app, version, server, tuple(clients))
    )


@dataclass(frozen=True)
class _FlowerApplication(Application):
    """Flower app as the application of an emulation.

    Attributes:
        app: the app.
        version: version of Flower.
        server: host of its server.
        clients: hosts of its clients.
    """

    app: FlowerApp
    version: str
    server: Host
    clients: tuple[Host, ...]

    @property
    def name(self) -> str:
        return "Flower app"

    def describe(self) -> StrategyRecord:
        return StrategyRecord(
            name="flower",
            sync_mode="asynchronous",
            description=f"the Flower app {self.app.folder.name}, by Flower {self.version}",
            parameters={"app": self.app.folder.name, "version": self.version},
            server_tier=self.server.layer,
        )

    def run(self, context: RunContext, namespaces: HostNamespaces) -> None:
        programs = AppPrograms(self.app, self.server.address)
        AppRun(context, programs, self.server, self.clients).run(namespaces)

    def collect(self, context: RunContext) -> None:
        # Its imports start threads, and this process must have none when it enters the sandbox.
        from laggard.flower.collect_app import collect_app

        scenario, journal = context.scenario, context.journal
        done = None
        if context.output_dir.folder.exists():
            with journal.stage("collect"):
                done = collect_app(
                    context.folder,
                    context.output_dir,
                    self.clients,
                    context.dilation,
                    scenario.shares,
                )
        if done is None:
            report_untrained_run(journal)
        else:
            analyze_training(journal, scenario, done)
        remove_streams(context.folder)
