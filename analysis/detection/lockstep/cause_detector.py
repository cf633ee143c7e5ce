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
    """Measurements of a lockstep run.

    Attributes:
        timeline: barriers, and the work between them.
        references: reference durations of the phases.
        transfers: transfer times of the collectives relative to their usual ones.
        drift: slowdown (log) that most ranks' compute shares, [S].
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
    """Detector of one kind of cause; detectors are called in the order of the registry."""

    def __call__(self, run: DetectionInput, found: tuple[Cause, ...]) -> tuple[Cause, ...]:
        """Return the `found` causes of earlier detectors, possibly modified, and new causes."""
        ...


def measure_detection_input(run: RunData) -> DetectionInput:
    """Measure everything that the detectors need.

    Raises:
        RunFolderError: some rank recorded no step.
    """
    timeline = build_timeline(run)
    references = fit_references(timeline, run.hosts, timeline.teams)
    return DetectionInput(
        timeline=timeline,
        references=references,
        transfers=measure_transfers(timeline),
        drift=measure_machine_drift(timeline, references),
        links=run.links,
        hosts=run.hosts,
    )


def measure_machine_drift(timeline: Timeline, references: References) -> FloatArray:
    """Return the slowdown (log) shared by three quarters of the ranks, [S]; 0 in warm-up."""
    usable = ~timeline.warm_up
    logs = timeline.work.total(COMPUTE_CODES)[usable]
    for rank in range(logs.shape[1]):
        logs[:, rank] = compute_log_ratio(
            logs[:, rank], references.own.total(rank, COMPUTE_CODES)[usable]
        )
    drift = np.zeros(len(usable))
    drift[usable] = estimate_shared_drift(logs)
    return drift
