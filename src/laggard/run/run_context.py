"""Plan and open files of one run, as the outer process passes them into the sandbox."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.core.virtual_time import Dilation
from laggard.network_emulation.compute.cpu_plan import CpuPlan
from laggard.network_emulation.probe import BackendName
from laggard.run_folder.fidelity_checks import FidelityPolicy
from laggard.run_folder.journal import Journal
from laggard.scenario.load import Scenario
from laggard.workloads.output.worker_output import WorkerOutputDir

if TYPE_CHECKING:
    from laggard.network_emulation.compute.cgroups import CgroupSet


@dataclass(frozen=True)
class RunContext:
    """One run, ready to enter its sandbox.

    Attributes:
        scenario: what to run.
        links: what shapes the links.
        cpu: the core of every host, and the dilation.
        cgroups: open control files; None where this user may not make any.
        journal: where to put down how it goes.
        started_ns: CLOCK_MONOTONIC when the command began.
        app_conf: the set of variables of `workflow_env.yaml` that the workflow sees; None for none.
        fidelity: what a failed check does before training.
    """

    scenario: Scenario
    links: BackendName
    cpu: CpuPlan
    cgroups: CgroupSet | None
    journal: Journal
    started_ns: int
    app_conf: str | None = None
    fidelity: FidelityPolicy = "require"

    @property
    def dilation(self) -> Dilation:
        """Between this machine's time and the scenario's."""
        return Dilation(self.cpu.dilation)

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.journal.folder.path

    @property
    def logs(self) -> Path:
        """Where every process's output goes."""
        return self.journal.folder.logs

    @property
    def output_dir(self) -> WorkerOutputDir:
        """What the processes of the training stream into."""
        return WorkerOutputDir(self.folder / "workers")
