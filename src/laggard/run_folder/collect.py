"""Collection of a training's results: streams of its processes to tables, then the analysis."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.core.run_schema import RunOutcome, RunStatus
from laggard.run_folder.analyze import analyze_if_trained, write_analysis
from laggard.run_folder.journal import Journal
from laggard.run_folder.outcome import RankUsage, compute_cost, compute_fairness
from laggard.scenario.load import Scenario

if TYPE_CHECKING:
    from laggard.analysis.tables.load_run import RunData


def analyze_training(
    journal: Journal, scenario: Scenario, done: Mapping[str, object] | None
) -> None:
    """Compute outcome, findings and report of a training whose tables are in the run folder.

    Args:
        journal: journal of the run.
        scenario: scenario of the run.
        done: statement of the first rank about the end of training; None if there is none.
    """
    from laggard.analysis.tables.load_run import load_run

    folder = journal.folder.path
    with journal.stage("analyze"):
        run, status = load_run(folder), journal.record.status
        # The controller leaves the status `running` if there was no error; `done` is set below.
        ended = done is not None and status in {"running", "unfaithful"}
        if done is not None and ended:
            # As in a later analysis of the folder, the record must contain the outcome: not every
            # rank's spans show when training ended.
            run = replace(
                run,
                record=journal.record.model_copy(
                    update={"outcome": _compute_outcome(scenario, run, done)}
                ),
            )
        analysis = analyze_if_trained(run)
        if run.record is not None and ended and analysis is not None:
            journal.update(status=_get_final_status(status), outcome=run.record.outcome)
    with journal.stage("report"):
        write_analysis(replace(run, record=journal.record), analysis, folder)


def _get_final_status(status: RunStatus) -> RunStatus:
    return "done" if status == "running" else status


def report_untrained_run(folder: Path) -> None:
    """Write the report of a run that never began to train.

    It gives the reason, and the values measured until then.
    """
    from laggard.analysis.tables.load_run import load_run

    write_analysis(load_run(folder), None, folder)
    shutil.rmtree(folder / "workers", ignore_errors=True)


def _compute_outcome(scenario: Scenario, run: RunData, done: Mapping[str, object]) -> RunOutcome:
    """Compute the outcome from the first rank's statement and the tables."""
    from laggard.analysis.tables.timelines.time_split import sum_compute_s

    makespan_s = float(str(done["makespan_s"]))
    ranks = range(run.world_size)
    samples, discarded = (
        [int(sample_counts[run.steps.rank == rank].sum()) for rank in ranks]
        for sample_counts in (run.steps.samples, run.steps.dropped)
    )
    computed = sum_compute_s(run)
    uses = [RankUsage(samples[rank], float(computed[rank]), discarded[rank]) for rank in ranks]
    sent, bytes_across_tiers = _count_bytes_sent(scenario, run.folder)
    tiers = Counter(host.layer for host in scenario.hosts)
    return RunOutcome.model_validate(
        {
            "makespan_s": makespan_s,
            "steps": done["steps"],
            "accuracy": done["accuracy"],
            "samples_per_s": sum(samples) / makespan_s if makespan_s > 0 else 0.0,
            "bytes_sent": sent,
            "cost": compute_cost(
                makespan_s, tiers, bytes_across_tiers, scenario.workload.objective.prices
            ),
            "fairness": compute_fairness(uses, makespan_s),
            "stopped_by": done["stopped_by"],
        }
    )


def _count_bytes_sent(scenario: Scenario, folder: Path) -> tuple[int, int]:
    """Return the bytes of all links during training, and the bytes of the links between tiers."""
    document = json.loads((folder / "counters.json").read_text())
    layer = {host.name: host.layer for host in scenario.hosts}
    links = document["links"]
    bytes_across_tiers = sum(
        link["bytes"] for link in links if layer[link["src"]] != layer[link["dst"]]
    )
    return sum(link["bytes"] for link in links), bytes_across_tiers
