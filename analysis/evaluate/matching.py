"""Matching of findings and events.

A finding can match an event if both are at the same place (the same rank, or the collectives) and
share at least half of the steps that either has (intersection over union). The label (family and
kind) need not be the same; a wrong label is an error of its own. Findings and events are paired
one to one: as many pairs as possible and, among those pairings, the one with the greatest overlap.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from laggard.analysis.evaluate.ground_truth import InjectedEvent
from laggard.core.run_schema import Finding

LEAST_OVERLAP = 0.5


def compute_overlap(event: InjectedEvent, finding: Finding) -> float:
    """Return the shared steps divided by the steps that either has; 0 if the places differ."""
    if event.rank != finding.rank:
        return 0.0
    shared = min(event.last, finding.last_step) - max(event.first, finding.first_step) + 1
    either = max(event.last, finding.last_step) - min(event.first, finding.first_step) + 1
    return max(shared, 0) / either


def match_findings(
    events: Sequence[InjectedEvent], findings: Sequence[Finding]
) -> tuple[tuple[int, int], ...]:
    """Pair events with findings.

    Args:
        events: injected events.
        findings: findings of the analysis.

    Returns:
        Pairs (event, finding) of indices, ordered by event. They have the greatest possible number
        of pairs, then the greatest sum of overlaps, where a correct label counts like an overlap
        of 1.
    """
    from scipy.optimize import linear_sum_assignment

    if not events or not findings:
        return ()
    shared = np.array(
        [[compute_overlap(event, finding) for finding in findings] for event in events]
    )
    named = np.array([[event.label == (f.family, f.kind) for f in findings] for event in events])
    may = shared >= LEAST_OVERLAP
    # A pair is worth at most 2 (overlap and label) plus an offset that outweighs the worth of all
    # other pairs, so the number of pairs is maximized first.
    worth = np.where(may, shared + named + 2.0 * min(shared.shape) + 1.0, 0.0)
    rows, columns = linear_sum_assignment(worth, maximize=True)
    return tuple((int(e), int(f)) for e, f in zip(rows, columns, strict=True) if may[e, f])
