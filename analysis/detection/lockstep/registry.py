"""Registry of the detectors of lockstep runs, in the order in which they run: one line each.

Detectors of transfers come after those of local work, because slow local work can explain slow
transfers.
"""

from __future__ import annotations

from collections.abc import Sequence

from laggard.analysis.detection.causes import Cause
from laggard.analysis.detection.families import COMPUTE, HOST, STORAGE
from laggard.analysis.detection.lockstep.cause_detector import CauseDetector, DetectionInput
from laggard.analysis.detection.lockstep.local_work import LocalWorkDetector
from laggard.analysis.detection.lockstep.network import find_link_causes, find_transfer_causes

DETECTORS: tuple[CauseDetector, ...] = (
    LocalWorkDetector(COMPUTE),
    LocalWorkDetector(STORAGE),
    LocalWorkDetector(HOST),
    find_transfer_causes,
    find_link_causes,
)


def find_causes(
    run: DetectionInput, detectors: Sequence[CauseDetector] = DETECTORS
) -> tuple[Cause, ...]:
    """Return the causes that all detectors find."""
    found: tuple[Cause, ...] = ()
    for detect in detectors:
        found = detect(run, found)
    return found
