"""Measurements and findings of a run in lockstep: timeline, references, causes and the replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from laggard.analysis.detection.causes import Cause
from laggard.analysis.detection.lockstep.cause_detector import (
    CauseDetector,
    measure_detection_input,
)
from laggard.analysis.detection.lockstep.registry import DETECTORS, find_causes
from laggard.analysis.detection.reference import References
from laggard.analysis.detection.transfers import Transfers
from laggard.analysis.replay.lockstep.cause_removal import plan_removals
from laggard.analysis.replay.lockstep.lockstep_replay import LockstepReplay
from laggard.analysis.replay.lockstep.observed_schedule import build_observed_schedule
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.timeline import Timeline


@dataclass(frozen=True)
class LockstepAnalysis:
    """Analyzed run of ranks in lockstep.

    Attributes:
        timeline: barriers of the run and the work between them.
        references: usual durations of phases.
        transfers: collectives compared with their usual durations.
        causes: slow intervals that were found.
        replay: replay of the run without any subset of the causes.
    """

    timeline: Timeline
    references: References
    transfers: Transfers
    causes: tuple[Cause, ...]
    replay: LockstepReplay

    def with_causes(self, causes: tuple[Cause, ...]) -> LockstepAnalysis:
        """Return the same measurements with other causes."""
        removals = plan_removals(self.timeline, self.references, self.transfers, causes)
        return replace(self, causes=causes, replay=replace(self.replay, removals=removals))


def build_lockstep_analysis(
    run: RunData, detectors: Sequence[CauseDetector] = DETECTORS
) -> LockstepAnalysis:
    """Find the causes of a run in lockstep and prepare its replay.

    Args:
        run: a loaded run whose ranks take the same steps.
        detectors: detectors that look for causes, in their order.

    Raises:
        RunFolderError: some rank recorded no step.
    """
    measured = measure_detection_input(run)
    timeline, references, transfers = measured.timeline, measured.references, measured.transfers
    causes = find_causes(measured, detectors)
    removals = plan_removals(timeline, references, transfers, causes)
    return LockstepAnalysis(
        timeline,
        references,
        transfers,
        causes,
        LockstepReplay(build_observed_schedule(timeline), removals),
    )
