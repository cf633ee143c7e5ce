"""Speeds of recorded runs, to compare with predicted ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from laggard.run_folder.store import load_record
from laggard.scenario.load import Scenario, load_scenario


@dataclass(frozen=True)
class RecordedSpeed:
    """Speed of one run.

    Attributes:
        workers: number of its workers.
        samples: samples of one worker in a step.
        samples_per_s: samples of all workers per virtual second.
    """

    workers: int
    samples: int
    samples_per_s: float


def read_recorded_speeds(
    folders: Sequence[Path], scenario: Scenario, samples: Sequence[int]
) -> tuple[RecordedSpeed, ...]:
    """Read the speeds of runs that are comparable with predicted ones.

    Args:
        folders: folders of the runs.
        scenario: the scenario that is predicted.
        samples: samples of one worker in a step, of every prediction.

    Returns:
        Speeds of the runs with the model, the dataset and the strategy of the scenario, and with
        the samples of a prediction.
    """
    workload, found = scenario.workload, []
    for folder in folders:
        ran, outcome = load_scenario(folder / "scenario"), load_record(folder).outcome
        alike = (ran.workload.model, ran.workload.dataset.name, ran.workload.strategy) == (
            workload.model,
            workload.dataset.name,
            workload.strategy,
        )
        own = ran.workload.batch_size // max(len(ran.ranks), 1)
        if alike and outcome is not None and outcome.samples_per_s > 0 and own in samples:
            found.append(RecordedSpeed(len(ran.ranks), own, outcome.samples_per_s))
    return tuple(found)
