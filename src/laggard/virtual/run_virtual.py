"""One run in virtual time: checks, run folder, training, collection, analysis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.core.errors import InputError
from laggard.core.files.output_files import write_json
from laggard.core.provenance import fingerprint
from laggard.core.run_schema import VIRTUAL_TESTBED, RunRecord, RunSettings
from laggard.core.virtual_time import Dilation
from laggard.run_folder.collect import (
    STREAMS_FOLDER,
    analyze_training,
    collect_streams,
    remove_streams,
)
from laggard.run_folder.counters import COUNTERS_FILE
from laggard.run_folder.display import SilentDisplay, TextDisplay
from laggard.run_folder.journal import Journal
from laggard.run_folder.record import create_record, record_failure, record_origin
from laggard.run_folder.store import RunFolder
from laggard.scenario.load import Scenario
from laggard.supervision.interrupts import interrupt_on_signals

if TYPE_CHECKING:
    from laggard.virtual.client_times import MeasureTimes


@dataclass(frozen=True)
class VirtualOptions:
    """Options of a run in virtual time.

    Attributes:
        runs: folder of all run folders.
        quiet: whether to print nothing during the run.
        command: command line, for the record.
        report: whether to draw the report.
        recorded: run folders from which the step times are taken; none to measure some here.
    """

    runs: Path
    quiet: bool = False
    command: tuple[str, ...] = ()
    report: bool = True
    recorded: tuple[Path, ...] = ()


def run_virtual(scenario: Scenario, options: VirtualOptions) -> tuple[RunRecord, Path]:
    """Run a scenario to its end in virtual time.

    Args:
        scenario: loaded scenario, whose strategy is `federated`.
        options: options of the run.

    Returns:
        The final record and the run folder; the record of a failed run has the status `failed`.

    Raises:
        InputError: the scenario cannot be run in virtual time, or a recorded run has no step times.
        RunFolderError: the run folder cannot be created.
    """
    require_virtual(scenario)
    measure = _choose_times(scenario, options.recorded)
    unplayed = any(play.model_fields_set > {"hosts"} for play in scenario.workflow.plays)
    warnings = ["the plays of workflow.yaml are not run in virtual time"] if unplayed else []
    settings = RunSettings(report=options.report)
    draft = create_record(scenario, VIRTUAL_TESTBED, None, options.command, warnings, settings)
    draft = draft.model_copy(update={"hosts": (fingerprint.describe_machine(),)})
    folder, record = RunFolder.create(options.runs, draft)
    with folder:
        journal = Journal(record, folder, SilentDisplay() if options.quiet else TextDisplay())
        try:
            with interrupt_on_signals():
                folder.logs.mkdir()
                record_origin(journal, scenario)
                _analyze(journal, scenario, _train(journal, scenario, measure))
        # This is the last place that can record an unexpected exception in the run folder.
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001
            record_failure(journal, error)
        journal.display.close()
        return journal.record, folder.path


def require_virtual(scenario: Scenario) -> None:
    """Require that a scenario can be run in virtual time.

    Raises:
        InputError: it cannot.
    """
    option = f"--on {VIRTUAL_TESTBED}"
    if not scenario.trains:
        raise InputError(
            f"{option}: {scenario.name}: {scenario.untrained_reason} — give a scenario whose"
            " workload.yaml has a model and a dataset, or run --on local"
        )
    workload = scenario.workload
    if workload.local_batch is None:
        raise InputError(
            f"{option}: the strategy is {workload.strategy.name}, and only federated trainings run"
            " in virtual time — run --on local, or use `laggard simulate`, which trains nothing"
        )
    if workload.resume:
        raise InputError(
            f"{option}: resume has no effect in virtual time — remove it, or run --on local"
        )


def _choose_times(scenario: Scenario, recorded: Sequence[Path]) -> MeasureTimes:
    """Return the source of the clients' times: recorded runs, or this machine without any."""
    from laggard.virtual.client_times import measure_client_times
    from laggard.virtual.recorded_times import RecordedTimes

    return RecordedTimes.read(recorded, scenario) if recorded else measure_client_times


def _train(journal: Journal, scenario: Scenario, measure: MeasureTimes) -> Sequence[float]:
    """Train, and write the streams and the counters of the links.

    Returns:
        Seconds that each client computes in a round.
    """
    from laggard.virtual.plan_simulation import plan_simulation
    from laggard.workloads.output.worker_output import WorkerOutputDir

    output_dir = WorkerOutputDir(journal.folder.path / STREAMS_FOLDER)
    output_dir.folder.mkdir()
    with journal.stage("measure steps"):
        simulation = plan_simulation(scenario, output_dir, measure)
    with journal.stage("train"):
        simulation.train()
    journal.update(churn=tuple(simulation.churn))
    links = [
        {"src": src, "dst": dst, "bytes": carried}
        for (src, dst), carried in simulation.carried_bytes.items()
    ]
    write_json(journal.folder.path / COUNTERS_FILE, {"links": links})
    return simulation.round_s


def _analyze(journal: Journal, scenario: Scenario, round_s: Sequence[float]) -> None:
    from laggard.analysis.tables.arrow_columns import MAX_RANKS

    folder = journal.folder.path
    with journal.stage("collect"):
        done = collect_streams(folder, scenario, Dilation(1.0))
    if len(scenario.ranks) <= MAX_RANKS:
        analyze_training(journal, scenario, done)
    else:
        from laggard.virtual.crowd_result import write_crowd_result

        assert done is not None
        with journal.stage("analyze"):
            write_crowd_result(journal, scenario, round_s, done, MAX_RANKS)
    remove_streams(folder)
