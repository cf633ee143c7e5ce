"""Choice of the runner of a campaign's cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from laggard.campaign.campaign_file import CampaignFile
from laggard.campaign.cell_runners.reserved_cells import (
    ReservedCells,
    SharedMachines,
    reserve_cells,
)
from laggard.campaign.cell_runners.warm_process import WarmProcess, start_warm_process
from laggard.campaign.cell_runs import CellRunner, ProcessRunner
from laggard.campaign.cells import Cell
from laggard.campaign.run_campaign import OpenRunner
from laggard.campaign.run_subprocess import SubprocessRun
from laggard.core.linux import thread_names
from laggard.layers_services.e2clab.play_inputs import PlayInputs
from laggard.remote.testbeds.remote_testbed import RemoteTestbed
from laggard.scenario.load import Scenario, load_scenario


def choose_runner(testbed: RemoteTestbed | None) -> OpenRunner:
    """Return the function that opens the runner of cells for a testbed.

    Args:
        testbed: testbed with its options; None for this machine.
    """

    @contextmanager
    def open_runner(
        runner: ProcessRunner, pending: Sequence[Cell], folder: Path
    ) -> Iterator[CellRunner]:
        if testbed is not None:
            with _reserve(testbed, runner, pending, folder) as reserved:
                yield reserved
        # One cell alone would wait for imports that it does not need. A process with threads
        # cannot be forked.
        elif len(pending) < 2 or len(thread_names()) > 1:
            yield runner
        else:
            with start_warm_process(folder) as warm:
                yield WarmRunner(runner, warm)

    return open_runner


def _reserve(
    testbed: RemoteTestbed, runner: ProcessRunner, pending: Sequence[Cell], folder: Path
) -> AbstractContextManager[ReservedCells[Cell]]:
    setups = {cell.setup_digest: cell for cell in pending}
    machines = SharedMachines(
        testbed,
        {digest: _load(runner.campaign, cell) for digest, cell in setups.items()},
        folder,
        tuple(runner.options),
        runner.campaign.stop.node_hours,
    )
    return reserve_cells(machines, lambda options: replace(runner, options=options))


def _load(campaign: CampaignFile, cell: Cell) -> Scenario:
    folder = cell.setup.scenario
    plays = PlayInputs((campaign.artifacts or folder).absolute(), campaign.app_conf)
    return load_scenario(folder, cell.overrides(), plays=plays)


@dataclass(frozen=True)
class WarmRunner:
    """Runner that forks every cell from a process with everything imported.

    Attributes:
        runner: runner that starts a new interpreter instead, with the options of a run.
        warm: process to fork from.
    """

    runner: ProcessRunner
    warm: WarmProcess

    @property
    def starter_pid(self) -> int:
        """Process id of the parent of every run."""
        return self.warm.pid

    def find_stop_reason(self, cell: Cell) -> str | None:  # noqa: ARG002
        """Return None, since this machine has room for every cell."""
        return None

    def run(self, cell: Cell, token: str) -> SubprocessRun:
        """Run a cell to its end; it ends with this process."""
        return self.warm.run(self.runner.build_words(cell, token), self.runner.on_tick)
