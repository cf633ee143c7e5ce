"""What is worked out of a run in lockstep before anything is said of it: its timeline, what is
usual, what was slow, and how it can be replayed.
"""

from __future__ import annotations

from dataclasses import dataclass

from laggard.analysis.causes import Cause
from laggard.analysis.detect import (
    LOCAL_FAMILIES,
    find_local_causes,
    find_slow_links,
    find_transfer_causes,
    machine_drift,
)
from laggard.analysis.load import Run
from laggard.analysis.reference import References, fit_references
from laggard.analysis.replay.arrange import build_timeline
from laggard.analysis.replay.maxplus import observed_schedule
from laggard.analysis.replay.relief import plan_reliefs
from laggard.analysis.replay.timeline import Timeline
from laggard.analysis.replay.what_if import WhatIf
from laggard.analysis.transfers import Transfers, measure_transfers


@dataclass(frozen=True)
class Study:
    """A run in lockstep, taken apart.

    Attributes:
        timeline: its barriers, and the work between them.
        references: what phases usually take.
        transfers: the collectives against their usual.
        causes: what was slow.
        what_if: replays it without any of them.
    """

    timeline: Timeline
    references: References
    transfers: Transfers
    causes: tuple[Cause, ...]
    what_if: WhatIf


def study(run: Run) -> Study:
    """Takes a run apart.

    Raises:
        RunFolderError: some rank recorded no step.
    """
    timeline = build_timeline(run)
    references, transfers = fit_references(timeline, run.hosts), measure_transfers(timeline)
    drift = machine_drift(timeline, references)
    local = tuple(
        cause
        for family in LOCAL_FAMILIES
        for cause in find_local_causes(timeline, references, drift, family)
    )
    dynamic, local = find_transfer_causes(timeline, drift, transfers, local, run.links, run.hosts)
    lasting, others_busy_s = find_slow_links(timeline, transfers, dynamic, run.links, run.hosts)
    causes = (*local, *dynamic, *lasting)
    reliefs = plan_reliefs(timeline, references, transfers, causes, others_busy_s)
    return Study(
        timeline, references, transfers, causes, WhatIf(observed_schedule(timeline), reliefs)
    )
