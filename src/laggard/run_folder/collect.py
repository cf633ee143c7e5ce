"""Collection of a training's results: streams of its processes to tables, then the analysis."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ValidationError

from laggard.core.errors import RunFolderError
from laggard.core.files.input_files import read_json
from laggard.core.node_values import Count, describe_invalid
from laggard.core.run_schema import RunOutcome, RunRecord, RunStatus
from laggard.core.virtual_time import Dilation
from laggard.run_folder.analyze import analyze_if_trained, write_analysis
from laggard.run_folder.counters import COUNTERS_FILE
from laggard.run_folder.journal import Journal
from laggard.run_folder.outcome import RankUsage, compute_cost, compute_fairness
from laggard.scenario.load import Scenario
from laggard.workloads.output.training_end import TrainingEnd, read_training_end
from laggard.workloads.output.worker_output import WorkerOutputDir

if TYPE_CHECKING:
    from laggard.analysis.findings.analysis_result import AnalysisResult
    from laggard.analysis.tables.load_run import RunData

STREAMS_FOLDER = "workers"
"""Folder of the streams of a training on this machine, until they are in the tables."""


class _CarriedBytes(BaseModel):
    src: str
    dst: str
    bytes: Count


class _Counters(BaseModel):
    links: tuple[_CarriedBytes, ...]


def collect_streams(
    folder: Path, scenario: Scenario, dilation: Dilation, *, runs_code: bool = True
) -> TrainingEnd | None:
    """Write the tables of a training on this machine from the streams of its processes.

    The streams stay until `remove_streams`, so that this can be repeated after a kill.

    Args:
        folder: run folder.
        scenario: scenario of the run.
        dilation: ratio of real to virtual time.
        runs_code: whether code that the scenario names may be executed, to pay clients.

    Returns:
        The statement of the first rank about the end of training; None if there is none.

    Raises:
        RunFolderError: a stream is damaged.
    """
    from laggard.workloads.plan import sampled_hosts
    from laggard.workloads.tracing.collect import collect

    output_dir = WorkerOutputDir(folder / STREAMS_FOLDER)
    sampled = sampled_hosts(scenario.workload, scenario.hosts)
    collect(output_dir.folder, folder, scenario.ranks, dilation, scenario.shares, sampled)
    if output_dir.updates.exists():
        from laggard.workloads.serving.pay_clients import pay_recorded_clients

        pay_recorded_clients(scenario.workload, scenario.ranks, output_dir, runs_code=runs_code)
    for path in (output_dir.checkpoint, output_dir.weights, output_dir.ledger):
        if path.exists():
            shutil.move(path, folder / path.name)
    return read_training_end(output_dir.done)


def remove_streams(folder: Path) -> None:
    """Remove the streams of a training, whose content is in the tables."""
    shutil.rmtree(folder / STREAMS_FOLDER, ignore_errors=True)


def analyze_training(journal: Journal, scenario: Scenario, done: TrainingEnd | None) -> None:
    """Compute outcome, findings and report of a training whose tables are in the run folder.

    Args:
        journal: journal of the run.
        scenario: scenario of the run.
        done: statement of the first rank about the end of training; None if there is none.
    """
    from laggard.analysis.tables.load_run import load_run

    folder = journal.folder.path
    with journal.stage("analyze"):
        run = load_run(folder)
        if done is not None and _has_outcome(folder, journal.record.status):
            # As in a later analysis of the folder, the record must contain the outcome: not every
            # rank's spans show when training ended.
            outcome = _compute_outcome(scenario, run, done)
            run = replace(run, record=journal.record.model_copy(update={"outcome": outcome}))
        analysis = analyze_if_trained(run)
    final = _complete_record(run.record or journal.record, done, analysis)
    with journal.stage("report"):
        shown = final.model_copy(update={"stages": journal.record.stages})
        write_analysis(replace(run, record=shown), analysis, folder, report=_wants_report(shown))
    # A run is done when its report is.
    journal.update(status=final.status, error=final.error, outcome=final.outcome)


def _wants_report(record: RunRecord) -> bool:
    return record.settings is None or record.settings.report


def _has_outcome(folder: Path, status: RunStatus) -> bool:
    """Return whether training came to its end, and its bytes were counted.

    The controller leaves the status `running` if there was no error. A run that was killed after
    its training is `interrupted`.
    """
    return status in {"running", "unfaithful", "interrupted"} and (folder / COUNTERS_FILE).exists()


def _complete_record(
    record: RunRecord, done: TrainingEnd | None, analysis: AnalysisResult | None
) -> RunRecord:
    """Return the record of a run whose data is analyzed; no status remains `running`."""
    if analysis is not None and done is not None:
        status: RunStatus = "done" if record.status == "running" else record.status
        return record.model_copy(update={"status": status})
    without_outcome = record.model_copy(update={"outcome": None})
    if record.status != "running":
        return without_outcome
    error = (
        "no step was finished by every rank"
        if analysis is None
        else "the first rank did not state the end of training"
    )
    return without_outcome.model_copy(update={"status": "failed", "error": error})


def report_untrained_run(journal: Journal) -> None:
    """Write the report of a run without a training, and complete its record.

    Such a run never began to train, for a reason that the report gives, or it has no workload.
    """
    from laggard.analysis.tables.load_run import load_run

    folder, final = journal.folder.path, journal.record
    if final.status == "running":
        missed = {"status": "failed", "error": "the first step did not begin"}
        final = final.model_copy(update=missed if final.trains else {"status": "done"})
    with journal.stage("report"):
        shown = final.model_copy(update={"stages": journal.record.stages})
        run = replace(load_run(folder), record=shown)
        write_analysis(run, None, folder, report=_wants_report(shown))
    # A run is done when its report is.
    journal.update(status=final.status, error=final.error)
    remove_streams(folder)


def _compute_outcome(scenario: Scenario, run: RunData, done: TrainingEnd) -> RunOutcome:
    """Compute the outcome from the first rank's statement and the tables."""
    from laggard.analysis.tables.timelines.time_split import sum_compute_s

    ranks = range(run.world_size)
    samples, discarded = (
        [int(sample_counts[run.steps.rank == rank].sum()) for rank in ranks]
        for sample_counts in (run.steps.samples, run.steps.dropped)
    )
    computed = sum_compute_s(run)
    uses = [RankUsage(samples[rank], float(computed[rank]), discarded[rank]) for rank in ranks]
    return build_outcome(scenario, run.folder, uses, done)


def build_outcome(
    scenario: Scenario, folder: Path, uses: Sequence[RankUsage], done: TrainingEnd
) -> RunOutcome:
    """Build the outcome of a training.

    Args:
        scenario: scenario of the run.
        folder: run folder with the counters of the links.
        uses: work of each rank.
        done: statement about the end of training.
    """
    makespan_s, samples = done.makespan_s, [each.samples for each in uses]
    sent, bytes_across_tiers = _count_bytes_sent(scenario, folder)
    tiers = Counter(host.layer for host in scenario.hosts)
    return RunOutcome.model_validate(
        {
            "makespan_s": makespan_s,
            "steps": done.steps,
            "accuracy": done.accuracy,
            "samples_per_s": sum(samples) / makespan_s if makespan_s > 0 else 0.0,
            "bytes_sent": sent,
            "bytes_across_tiers": bytes_across_tiers,
            "cost": compute_cost(
                makespan_s, tiers, bytes_across_tiers, scenario.workload.objective.prices
            ),
            "fairness": compute_fairness(uses, makespan_s),
            "stopped_by": done.stopped_by,
        }
    )


def _count_bytes_sent(scenario: Scenario, folder: Path) -> tuple[int, int]:
    """Return the bytes of all links during training, and the bytes of the links between tiers."""
    path = folder / COUNTERS_FILE
    try:
        links = _Counters.model_validate(read_json(path)).links
    except ValidationError as error:
        raise RunFolderError(
            f"{path}: {describe_invalid(error)} — the file was changed; copy it again"
        ) from error
    layer = {host.name: host.layer for host in scenario.hosts}
    bytes_across_tiers = sum(
        link.bytes for link in links if layer.get(link.src) != layer.get(link.dst)
    )
    return sum(link.bytes for link in links), bytes_across_tiers
