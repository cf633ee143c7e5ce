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
    """Run that is ready to enter its sandbox.

    Attributes:
        scenario: scenario to run.
        links: backend that shapes the links.
        cpu: core of every host, and the dilation.
        cgroups: open control files; None if this user may not create cgroups.
        journal: journal that records the progress of the run.
        started_ns: CLOCK_MONOTONIC at the start of the command.
        fidelity: effect of a failed check before training.
    """

    scenario: Scenario
    links: BackendName
    cpu: CpuPlan
    cgroups: CgroupSet | None
    journal: Journal
    started_ns: int
    fidelity: FidelityPolicy = "require"

    @property
    def dilation(self) -> Dilation:
        """Return the dilation between this machine's time and the scenario's."""
        return Dilation(self.cpu.dilation)

    @property
    def folder(self) -> Path:
        """Return the run folder."""
        return self.journal.folder.path

    @property
    def logs(self) -> Path:
        """Return the folder of every process's output."""
        return self.journal.folder.logs

    @property
    def output_dir(self) -> WorkerOutputDir:
        """Return the folder that the processes of the training stream into."""
        return WorkerOutputDir(self.folder / "workers")
