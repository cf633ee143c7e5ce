"""Run of a campaign: checks everything, then runs the cells that are not done, one after another.

Killed at any moment and started again, it loses nothing and does nothing twice: an attempt is
written down before its run starts, and the results of a run are stored before the next one starts.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from laggard.campaign.campaign_file import CampaignFile, load_campaign
from laggard.campaign.campaign_state import (
    STARTED,
    Attempt,
    CampaignState,
    Row,
    open_campaign,
    read_campaign,
)
from laggard.campaign.cell_runs import (
    CellRunner,
    ProcessRunner,
    describe_failure,
    find_run_of,
    make_token,
)
from laggard.campaign.cells import Cell, list_cells, list_setups
from laggard.campaign.check_setups import check_setups
from laggard.campaign.check_tasks import to_task_call
from laggard.campaign.dashboard import write_dashboard
from laggard.campaign.progress import CampaignProgress, measure_progress
from laggard.campaign.result_row import build_row
from laggard.campaign.results_table import CSV_FILE, build_table, write_tables
from laggard.campaign.stop_rules import find_stop_reason, is_known_well
from laggard.campaign.tasks.pools import LocalPool, WorkerPool
from laggard.campaign.tasks.registry import TASKS
from laggard.campaign.tasks.task_loop import run_tasks
from laggard.core.errors import InputError, OutputError
from laggard.core.files.disk_space import describe_full_disk
from laggard.core.files.input_files import read_bounded
from laggard.core.files.output_files import make_folder, write_atomically
from laggard.core.yaml_source import MAX_BYTES
from laggard.run_folder.fidelity_checks import FidelityPolicy
from laggard.run_folder.store import to_folder_name
from laggard.supervision.interrupts import interrupt_on_signals

FILE_COPY = "campaign.yaml"
_PUBLISH_S = 5.0
"""Time between two rewritings of the tables while tasks end, which may be many a second."""

_RUN_OPTIONS = ("--fidelity", "--links", "--dilation", "--artifacts", "--report")
_TASK_OPTIONS = ("--processes",)

OpenRunner = Callable[[ProcessRunner, Sequence[Cell], Path], AbstractContextManager[CellRunner]]


class CampaignDisplay(Protocol):
    """Something that shows a campaign while it runs."""

    def show_start(self, progress: CampaignProgress) -> None:
        """Show that everything was checked, and what is left to do."""

    def show_cell(self, cell: Cell, progress: CampaignProgress) -> None:
        """Show that a cell starts."""

    def tick(self) -> None:
        """Show how the current cell goes on."""

    def show_row(self, cell: Cell, row: Row, progress: CampaignProgress) -> None:
        """Show that a cell has ended."""


@dataclass(frozen=True)
class CampaignOptions:
    """Options of a campaign that its file does not have.

    Attributes:
        runs: folder of the run folders; the campaign's own folder is `campaigns/<name>` in it.
        name: name of the campaign; None for that of its file.
        fidelity: reaction to a failed fidelity check before training, in every run.
        artifacts: folder with the files of the plays, instead of that of the campaign file.
        run_options: further options of `laggard run`, such as `--on`.
        choose_pool: function that returns the processes for cells that need no continuum.
        given: names of the options that the user gave and that not every campaign has.
    """

    runs: Path
    name: str | None = None
    fidelity: FidelityPolicy = "require"
    artifacts: Path | None = None
    run_options: tuple[str, ...] = ()
    choose_pool: Callable[[], WorkerPool] = LocalPool
    given: tuple[str, ...] = ()


@dataclass(frozen=True)
class CampaignResult:
    """Result of one call of a campaign.

    Attributes:
        table: results table, CSV.
        progress: its cells, by what became of them.
        stopped: stopping rule that ended it early; None otherwise.
        skipped: number of repeats that the interval rule made unnecessary.
    """

    table: Path
    progress: CampaignProgress
    stopped: str | None
    skipped: int


def _load_campaign(path: Path, options: CampaignOptions) -> CampaignFile:
    """Load the campaign file, and require that every given option means something for it."""
    campaign = load_campaign(path)
    is_task = campaign.command in TASKS
    for name in options.given:
        if is_task and name in _RUN_OPTIONS:
            raise InputError(
                f"{name} is for runs, and cells of `command: {campaign.command}` have no"
                " continuum — leave it out"
            )
        if not is_task and name in _TASK_OPTIONS:
            raise InputError(
                f"{name} is for cells that need no continuum, and {path} has runs, which go one"
                " after another — leave it out"
            )
    if options.artifacts is not None:
        campaign = campaign.model_copy(update={"artifacts": options.artifacts.absolute()})
    return campaign


def plan_cells(campaign: CampaignFile, run_options: Sequence[str] = ()) -> Sequence[Cell]:
    """Return all cells in their order, after their scenarios have been checked.

    Args:
        campaign: the campaign.
        run_options: options of `laggard run` in all runs.

    Raises:
        InputError: there are none, or too many.
        ScenarioError: a scenario has problems with some values.
    """
    return list_cells(campaign, check_setups(campaign, list_setups(campaign), run_options))


@contextmanager
def _open_plain_runner(
    runner: ProcessRunner,
    _pending: Sequence[Cell],
    _folder: Path,
) -> Iterator[CellRunner]:
    yield runner


def run_campaign(
    path: Path,
    options: CampaignOptions,
    display: CampaignDisplay,
    open_runner: OpenRunner = _open_plain_runner,
) -> CampaignResult:
    """Run the cells of a campaign that are not done.

    Args:
        path: campaign file.
        options: options of the command.
        display: display of the progress.
        open_runner: context manager that gives the runner of the cells, from one that starts a
            process for each, the cells that are not done, and the campaign's folder.

    Raises:
        InputError: the file, an option, a setup or the stored state cannot be used, or another
            process runs this campaign; nothing was started.
        OutputError: the disk is full.
        KeyboardInterrupt: a signal ended the campaign and its current run.
    """
    campaign = _load_campaign(path, options)
    cells = plan_cells(campaign, options.run_options)
    pool = options.choose_pool() if campaign.command in TASKS else LocalPool()
    folder = make_folder(options.runs, "campaigns", to_folder_name(options.name or path.stem))
    with ExitStack() as stack:
        state = stack.enter_context(open_campaign(folder))
        state.claim(path.resolve())
        write_atomically(folder / FILE_COPY, read_bounded(path, MAX_BYTES))
        state.add_cells(cells)
        done = state.list_done()
        pending = [cell for cell in cells if cell.digest not in done]
        plain = ProcessRunner(
            campaign, options.runs, options.fidelity, options.run_options, display.tick
        )
        # Tasks are computed in the processes of a pool.
        opened = _open_plain_runner if campaign.command in TASKS else open_runner
        runner = stack.enter_context(opened(plain, pending, folder))
        started = _Campaign(campaign, cells, folder, options.runs, state, runner, pool, display)
        return started.run()


@dataclass
class _Campaign:
    """Campaign while it runs.

    Attributes:
        skipped: cells that the interval rule made unnecessary.
    """

    campaign: CampaignFile
    cells: Sequence[Cell]
    folder: Path
    runs: Path
    state: CampaignState
    runner: CellRunner
    pool: WorkerPool
    display: CampaignDisplay
    started_s: float = field(default_factory=time.monotonic)
    skipped: set[str] = field(default_factory=set)

    def run(self) -> CampaignResult:
        self._store_ended_attempts()
        self.publish(running=True)
        self.display.show_start(self.measure())
        stopped = self._run_tasks() if self.campaign.command in TASKS else self._run_cells()
        self.publish(running=False)
        return CampaignResult(self.folder / CSV_FILE, self.measure(), stopped, len(self.skipped))

    def _run_cells(self) -> str | None:
        """Run the cells, one after another, and return why some were not started."""
        for cell in self.cells:
            if cell.digest in self.state.list_done():
                continue
            if self._is_known_well(cell):
                self.skipped.add(cell.digest)
                continue
            stopped = self.find_stop_reason() or self.runner.find_stop_reason(cell)
            if stopped is not None:
                return stopped
            self._run_cell(cell)
        return None

    def _run_tasks(self) -> str | None:
        """Let processes compute the cells, and return why some were not started."""
        done = self.state.list_done()
        left = [cell for cell in self.cells if cell.digest not in done]
        calls = [to_task_call(self.campaign.command, cell) for cell in left]
        with interrupt_on_signals():
            return run_tasks(calls, self.pool, _TaskRecorder(self, left))

    def find_stop_reason(self) -> str | None:
        """Return why no further cell may start; None if one may."""
        elapsed_s = time.monotonic() - self.started_s
        return find_stop_reason(self.campaign.stop, elapsed_s, self.state.list_attempts())

    def _store_ended_attempts(self) -> None:
        """Store the results of runs that had started when the campaign was killed."""
        for attempt in self.state.list_attempts():
            if attempt.status != STARTED:
                continue
            document = find_run_of(attempt.token, self.runs)
            if document is None:
                self.state.drop_attempt(attempt.token)
            else:
                self.state.end_attempt(attempt.token, build_row(document, _get_stage_s(document)))

    def _run_cell(self, cell: Cell) -> None:
        for _ in range(1 + self.campaign.retries):
            self.display.show_cell(cell, self.measure())
            row = self._run_attempt(cell)
            self.publish(running=True)
            self.display.show_row(cell, row, self.measure())
            if row["status"] == "done":
                return

    def _run_attempt(self, cell: Cell) -> Row:
        token = self.start_attempt(cell)
        began_s = time.monotonic()
        ended = self.runner.run(cell, token)
        document = describe_failure(ended) if ended.result is None else ended.result
        row = build_row(document, time.monotonic() - began_s)
        self.state.end_attempt(token, row)
        return row

    def start_attempt(self, cell: Cell) -> str:
        """Record that an attempt starts, and return its token.

        Raises:
            OutputError: the disk is full.
        """
        full = describe_full_disk(self.runs)
        if full is not None:
            raise OutputError(f"{full}; then start the same command again, which goes on here")
        number = len(self.state.list_attempts())
        token = make_token(cell.digest, number, self.runner.starter_pid)
        self.state.start_attempt(cell.digest, token)
        return token

    def _is_known_well(self, cell: Cell) -> bool:
        rule = self.campaign.stop.interval
        if rule is None:
            return False
        same = {each.digest for each in self.cells if each.setup_digest == cell.setup_digest}
        done = [a.row for a in self.state.list_attempts() if a.digest in same and _is_done(a)]
        return is_known_well(rule, done)

    def measure(self) -> CampaignProgress:
        """Return the progress."""
        return measure_progress(self.cells, self.state.list_attempts(), self.skipped)

    def publish(self, *, running: bool) -> None:
        """Rewrite the tables and the dashboard."""
        current: Collection[str] = {cell.digest for cell in self.cells}
        table = build_table(self.state, current)
        write_tables(self.folder, table)
        write_dashboard(self.folder, table, self.measure(), running=running)


@dataclass
class _TaskRecorder:
    """Record of the tasks of a campaign (see `TaskRecorder`).

    Attributes:
        cells: cells that are not done yet.
        failures: number of failed attempts of each cell in this call.
    """

    campaign: _Campaign
    cells: Sequence[Cell]
    failures: Counter[str] = field(default_factory=Counter)
    published_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.by_digest = {cell.digest: cell for cell in self.cells}

    def find_stop_reason(self) -> str | None:
        return self.campaign.find_stop_reason()

    def start_task(self, digest: str) -> str:
        cell = self.by_digest[digest]
        token = self.campaign.start_attempt(cell)
        self.campaign.display.show_cell(cell, self.campaign.measure())
        return token

    def end_task(self, digest: str, token: str, document: Mapping[str, object]) -> bool:
        elapsed_s = document.get("elapsed_s")
        row = build_row(document, elapsed_s if isinstance(elapsed_s, float) else 0.0)
        self.campaign.state.end_attempt(token, row)
        self.campaign.display.show_row(self.by_digest[digest], row, self.campaign.measure())
        if time.monotonic() - self.published_s > _PUBLISH_S:
            self.campaign.publish(running=True)
            self.published_s = time.monotonic()
        self.failures[digest] += row["status"] != "done"
        return 0 < self.failures[digest] <= self.campaign.campaign.retries

    def tick(self) -> None:
        self.campaign.display.tick()


def _is_done(attempt: Attempt) -> bool:
    return attempt.status == "done"


def _get_stage_s(document: object) -> float:
    """Return the seconds that the stages of a run took together, as it recorded them."""
    stages = document.get("stages") if isinstance(document, dict) else None
    if not isinstance(stages, list):
        return 0.0
    seconds = [each.get("seconds") for each in stages if isinstance(each, dict)]
    return sum(float(value) for value in seconds if isinstance(value, int | float))


def read_progress(path: Path, options: CampaignOptions) -> tuple[CampaignProgress, Path]:
    """Return what a campaign has done, and its folder; nothing is started or changed.

    Raises:
        InputError: the file, an option or the state cannot be used.
    """
    cells = plan_cells(_load_campaign(path, options), options.run_options)
    folder = options.runs / "campaigns" / to_folder_name(options.name or path.stem)
    if not folder.exists():
        return measure_progress(cells, ()), folder
    with read_campaign(folder) as state:
        return measure_progress(cells, state.list_attempts()), folder
