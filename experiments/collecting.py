"""What a training left in its spool becomes the tables of the run folder, then everything that is
said of them.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.experiments.analysing import find, publish
from laggard.experiments.job import Job, Journal
from laggard.experiments.outcome import RankUse, cost, fairness
from laggard.experiments.scenario import Scenario
from laggard.run_schema import Outcome, Status

if TYPE_CHECKING:
    from laggard.analysis.load import Run


def collect_and_analyse(job: Job) -> None:
    """Write the tables, the outcome and the analysis of a training that began, however it ended;
    the spool goes.
    """
    from laggard.workloads.plan import sampled_hosts
    from laggard.workloads.tracing.collect import collect

    with job.journal.stage("collect"):
        scenario = job.scenario
        sampled = sampled_hosts(scenario.workload, scenario.hosts)
        collect(
            job.spool.folder, job.folder, scenario.ranks, job.dilation, scenario.shares, sampled
        )
        done = json.loads(job.spool.done.read_text()) if job.spool.done.exists() else None
    if job.spool.checkpoint.exists():
        shutil.move(job.spool.checkpoint, job.folder / job.spool.checkpoint.name)
    analyse_training(job.journal, job.scenario, done)
    shutil.rmtree(job.spool.folder)


def analyse_training(
    journal: Journal, scenario: Scenario, done: Mapping[str, object] | None
) -> None:
    """Outcome, findings and report of a training whose tables are in the run folder.

    Args:
        journal: of the run.
        scenario: what was run.
        done: what the first rank said of the end; None where there was none.
    """
    from laggard.analysis.load import load_run

    folder = journal.folder.path
    with journal.stage("analyse"):
        run, status = load_run(folder), journal.record.status
        ended = done is not None and status in {"running", "unfaithful"}
        if done is not None and ended:
            # The analysis is of the run as it will be read again: when training ended, not every
            # rank's spans tell.
            run = replace(
                run,
                record=journal.record.model_copy(update={"outcome": _outcome(scenario, run, done)}),
            )
        analysis = find(run)
        if run.record is not None and ended and analysis is not None:
            journal.update(status=_after(status), outcome=run.record.outcome)
    with journal.stage("report"):
        publish(replace(run, record=journal.record), analysis, folder)


def _after(status: Status) -> Status:
    return "done" if status == "running" else status


def tell_without_training(folder: Path) -> None:
    """The report of a run that never began to train: why, and what was measured until then."""
    from laggard.analysis.load import load_run

    publish(load_run(folder), None, folder)
    shutil.rmtree(folder / "spool", ignore_errors=True)


def _outcome(scenario: Scenario, run: Run, done: Mapping[str, object]) -> Outcome:
    """What the first rank says of the end, and the tables of the rest."""
    from laggard.analysis.time_split import computed_s

    makespan_s = float(str(done["makespan_s"]))
    ranks = range(run.world_size)
    samples, in_vain = (
        [int(counted[run.steps.rank == rank].sum()) for rank in ranks]
        for counted in (run.steps.samples, run.steps.dropped)
    )
    computed = computed_s(run)
    uses = [RankUse(samples[rank], float(computed[rank]), in_vain[rank]) for rank in ranks]
    sent, across = _bytes_sent(scenario, run.folder)
    tiers = Counter(host.layer for host in scenario.hosts)
    return Outcome.model_validate(
        {
            "makespan_s": makespan_s,
            "steps": done["steps"],
            "accuracy": done["accuracy"],
            "samples_per_s": sum(samples) / makespan_s if makespan_s > 0 else 0.0,
            "bytes_sent": sent,
            "cost": cost(makespan_s, tiers, across, scenario.workload.objective.prices),
            "fairness": fairness(uses, makespan_s),
            "stopped_by": done["stopped_by"],
        }
    )


def _bytes_sent(scenario: Scenario, folder: Path) -> tuple[int, int]:
    """Bytes that all links carried during training, and those that the links between tiers did."""
    document = json.loads((folder / "counters.json").read_text())
    layer = {host.name: host.layer for host in scenario.hosts}
    links = document["links"]
    across = sum(link["bytes"] for link in links if layer[link["src"]] != layer[link["dst"]])
    return sum(link["bytes"] for link in links), across
