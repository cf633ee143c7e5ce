"""What is worked out of a run in lockstep before anything is said of it: its timeline, what is
usual, what was slow, and how it can be replayed.
"""

from __future__ import annotations

from dataclasses import dataclass

from laggard.analysis.detection.causes import Cause
from laggard.analysis.detection.lockstep_causes import (
    LOCAL_FAMILIES,
    find_link_causes,
    find_local_causes,
    find_transfer_causes,
    measure_machine_drift,
)
from laggard.analysis.detection.reference import References, fit_references
from laggard.analysis.detection.transfers import Transfers, measure_transfers
from laggard.analysis.replay.lockstep.cause_removal import plan_removals
from laggard.analysis.replay.lockstep.lockstep_replay import LockstepReplay
from laggard.analysis.replay.lockstep.maxplus import build_observed_schedule
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.build_timeline import build_timeline
from laggard.analysis.tables.timelines.timeline import Timeline


@dataclass(frozen=True)
class LockstepAnalysis:
    """A run in lockstep, taken apart.

    Attributes:
        timeline: its barriers, and the work between them.
        references: what phases usually take.
        transfers: the collectives against their usual.
        causes: what was slow.
        replay: replays it without any of them.
    """

    timeline: Timeline
    references: References
    transfers: Transfers
    causes: tuple[Cause, ...]
    replay: LockstepReplay


def build_lockstep_analysis(run: RunData) -> LockstepAnalysis:
    """Takes a run apart.

    Raises:
        RunFolderError: some rank recorded no step.
    """
    timeline = build_timeline(run)
    references, transfers = fit_references(timeline, run.hosts), measure_transfers(timeline)
    drift = measure_machine_drift(timeline, references)
    local = tuple(
        cause
        for family in LOCAL_FAMILIES
        for cause in find_local_causes(timeline, references, drift, family)
    )
    dynamic, local = find_transfer_causes(timeline, drift, transfers, local, run.links, run.hosts)
    deterministic, others_busy_s = find_link_causes(
        timeline, transfers, dynamic, run.links, run.hosts
    )
    causes = (*local, *dynamic, *deterministic)
    removals = plan_removals(timeline, references, transfers, causes, others_busy_s)
    return LockstepAnalysis(
        timeline,
        references,
        transfers,
        causes,
        LockstepReplay(build_observed_schedule(timeline), removals),
    )
