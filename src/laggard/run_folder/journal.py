"""What the outer process has planned and opened for one run and hands into the sandbox."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.core.run_schema import RunRecord, StageDuration
from laggard.core.virtual_time import Dilation
from laggard.network_emulation.compute.cpu_plan import CpuPlan
from laggard.network_emulation.probe import BackendName
from laggard.run_folder.display import Display
from laggard.run_folder.store import RunFolder, load_record
from laggard.scenario.load import Scenario
from laggard.workloads.output.worker_output import WorkerOutputDir

if TYPE_CHECKING:
    from laggard.network_emulation.compute.cgroups import CgroupSet


@dataclass
class Journal:
    """The record of a run as it grows, on disk at every change; its stages take real seconds."""

    record: RunRecord
    folder: RunFolder
    display: Display
    stages: list[StageDuration] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str, detail: str = "") -> Iterator[None]:
        """Tell of a stage and time it."""
        self.display.stage(name, detail)
        began = time.monotonic()
        try:
            yield
        finally:
            self.stages.append(StageDuration(name=name, seconds=round(time.monotonic() - began, 3)))
            self.update(stages=tuple(self.stages))

    def update(self, **changes: object) -> None:
        """Change the record."""
        self.record = self.record.model_copy(update=changes)
        self.folder.write_record(self.record)

    def warn(self, warnings: Sequence[str]) -> None:
        """Add to the record's warnings."""
        if warnings:
            self.update(warnings=(*self.record.warnings, *warnings))

    def reload(self) -> None:
        """Read what the process in the sandbox has written since."""
        self.record = load_record(self.folder.path)
        self.stages = list(self.record.stages)


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
    """

    scenario: Scenario
    links: BackendName
    cpu: CpuPlan
    cgroups: CgroupSet | None
    journal: Journal
    started_ns: int
    app_conf: str | None = None

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
        return WorkerOutputDir(self.folder / "spool")
