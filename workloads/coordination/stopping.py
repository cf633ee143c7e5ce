"""Stopping rules of a training; pure."""

from __future__ import annotations

from collections.abc import Sequence

from laggard.workloads.specification.training import Stop

EVALUATIONS_IN_A_ROW = 3
"""Number of evaluations in a row that must reach the accuracy."""


def accuracy_reached(accuracies: Sequence[float], stop: Stop) -> bool:
    """Return whether the last three evaluations in a row reached the accuracy."""
    if stop.accuracy is None or len(accuracies) < EVALUATIONS_IN_A_ROW:
        return False
    return all(accuracy >= stop.accuracy for accuracy in accuracies[-EVALUATIONS_IN_A_ROW:])


def is_last_by_steps(step: int, stop: Stop) -> bool:
    """Return whether a step (from 0) is the last one allowed."""
    return stop.steps is not None and step + 1 >= stop.steps


def is_last_by_time(elapsed_s: float, stop: Stop) -> bool:
    """Return whether the step about to begin is the last one, by its start time.

    Args:
        elapsed_s: virtual seconds since the first step began.
        stop: stopping rule.
    """
    return stop.time_s is not None and elapsed_s >= stop.time_s
