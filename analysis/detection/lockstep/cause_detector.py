"""Contract of a detector, and the measurements that all detectors share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from laggard.analysis.detection.causes import Cause
from laggard.analysis.detection.intervals import estimate_shared_drift
from laggard.analysis.detection.reference import (
    COMPUTE_CODES,
    References,
    compute_log_ratio,
    fit_references,
)
from laggard.analysis.detection.transfers import Transfers, measure_transfers
from laggard.analysis.tables.columns import FloatArray, LinkColumns
from laggard.analysis.tables.load_run import RankHost, RunData
from laggard.analysis.tables.timelines.build_timeline import build_timeline
from laggard.analysis.tables.timelines.timeline import Timeline


@dataclass(frozen=True)
class DetectionInput:
    """Measurements of a run in lockstep.

    Attributes:
        timeline: barriers, and the work between them.
        references: own and fleet references of the phases.
        transfers: the collectives against their usual.
        drift: slowdown that most ranks' compute has in common (log), [S].
        links: TCP samples; may be empty.
        hosts: host of every rank.
    """

    timeline: Timeline
    references: References
    transfers: Transfers
    drift: FloatArray
    links: LinkColumns
    hosts: tuple[RankHost, ...]


class CauseDetector(Protocol):
    """Finds causes of one kind; called in the order of the registry."""

    def __call__(self, run: DetectionInput, found: tuple[Cause, ...]) -> tuple[Cause, ...]:
        """Return the causes `found` by earlier detectors, which may be changed, and its own."""
        ...


def measure_detection_input(run: RunData) -> DetectionInput:
    """Measure what the detectors need.

    Raises:
        RunFolderError: some rank recorded no step.
    """
    timeline = build_timeline(run)
    references = fit_references(timeline, run.hosts)
    return DetectionInput(
        timeline=timeline,
        references=references,
        transfers=measure_transfers(timeline),
        drift=measure_machine_drift(timeline, references),
        links=run.links,
        hosts=run.hosts,
    )


def measure_machine_drift(timeline: Timeline, references: References) -> FloatArray:
    """How much slower than usual three quarters of the ranks compute at once (log), [S]; 0 in
    warm-up.
    """
    usable = ~timeline.warm_up
    logs = timeline.work.total(COMPUTE_CODES)[usable]
    for rank in range(logs.shape[1]):
        logs[:, rank] = compute_log_ratio(
            logs[:, rank], references.own.total(rank, COMPUTE_CODES)[usable]
        )
    drift = np.zeros(len(usable))
    drift[usable] = estimate_shared_drift(logs)
    return drift
