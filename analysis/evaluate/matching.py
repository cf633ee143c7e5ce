"""Which finding is which event.

A finding may be an event if it is of the same place (the same rank, or the collectives) and both
share at least half of the steps that either has (intersection over union). Its class is no
condition: calling a thing by a wrong name is an error of its own. Findings and events are then
paired one to one: as many as can be, and of those pairings the one with the most in common.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from laggard.analysis.evaluate.ground_truth import InjectedEvent
from laggard.core.run_schema import Finding

LEAST_OVERLAP = 0.5


def compute_overlap(event: InjectedEvent, finding: Finding) -> float:
    """Steps shared over steps that either has; 0 where the places differ."""
    if event.rank != finding.rank:
        return 0.0
    shared = min(event.last, finding.last_step) - max(event.first, finding.first_step) + 1
    either = max(event.last, finding.last_step) - min(event.first, finding.first_step) + 1
    return max(shared, 0) / either


def match_findings(
    events: Sequence[InjectedEvent], findings: Sequence[Finding]
) -> tuple[tuple[int, int], ...]:
    """Pairs events with findings.

    Args:
        events: what was injected.
        findings: what was found.

    Returns:
        (event, finding) as indices, by event: the most pairs there can be, then the greatest sum of
        overlaps, a class that is right counting like an overlap of 1.
    """
    from scipy.optimize import linear_sum_assignment

    if not events or not findings:
        return ()
    shared = np.array(
        [[compute_overlap(event, finding) for finding in findings] for event in events]
    )
    named = np.array([[event.label == (f.family, f.kind) for f in findings] for event in events])
    may = shared >= LEAST_OVERLAP
    # One more pair outweighs all that other pairs can have in common, which is 2 each.
    worth = np.where(may, shared + named + 2.0 * min(shared.shape) + 1.0, 0.0)
    rows, columns = linear_sum_assignment(worth, maximize=True)
    return tuple((int(e), int(f)) for e, f in zip(rows, columns, strict=True) if may[e, f])
