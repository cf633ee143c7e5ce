"""Result of a federated training with more clients than a run folder can have ranks.

Its tables stay, and `federated.json`, `answer.json` and `summary.json` say who took part; there is
no analysis of its spans and no report.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from laggard.analysis.findings.federated_result import (
    build_federated_document,
    format_rounds,
    summarize_rounds,
)
from laggard.analysis.tables.load_run import RankHost
from laggard.core.files.input_files import read_json
from laggard.core.files.output_files import write_json
from laggard.core.run_schema import FEDERATED_FILE, FederatedTraining
from laggard.run_folder.analyze import SUMMARY_FILE
from laggard.run_folder.collect import build_outcome
from laggard.run_folder.journal import Journal
from laggard.run_folder.outcome import RankUsage
from laggard.scenario.load import Scenario
from laggard.workloads.output.training_end import TrainingEnd


def write_crowd_result(
    journal: Journal,
    scenario: Scenario,
    round_s: Sequence[float],
    done: TrainingEnd,
    most: int,
) -> None:
    """Write the sentences and numbers about the rounds, and complete the record.

    Args:
        journal: journal of the run, whose tables are in its folder.
        scenario: scenario of the run.
        round_s: seconds that each client computes in a round, by rank.
        done: statement about the end of training.
        most: number of ranks that a report can have.
    """
    import pyarrow.parquet as pq

    folder = journal.folder.path
    federated = FederatedTraining.model_validate(read_json(folder / FEDERATED_FILE))
    hosts = tuple(
        RankHost(rank, host.name, host.address, host.layer, "cpu", scenario.shares[host.name], 0, 0)
        for rank, host in enumerate(scenario.ranks)
    )
    result = summarize_rounds(federated, hosts)
    write_json(folder / "answer.json", list(format_rounds(result)))
    write_json(folder / SUMMARY_FILE, {"federated": build_federated_document(result)})
    table = pq.read_table(folder / "steps.parquet", columns=["rank", "samples", "dropped"])
    rank, samples, dropped = (column.to_numpy() for column in table.columns)
    steps = np.bincount(rank, minlength=len(hosts))
    used = np.bincount(rank, samples, len(hosts))
    wasted = np.bincount(rank, dropped, len(hosts))
    uses = [
        RankUsage(int(used[each]), float(steps[each] * round_s[each]), int(wasted[each]))
        for each in range(len(hosts))
    ]
    outcome = build_outcome(scenario, folder, uses, done)
    journal.warn((f"{len(hosts)} clients are more than the {most} that a report can have",))
    journal.update(status="done", outcome=outcome)
