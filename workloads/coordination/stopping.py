"""Rules for the end of training; pure."""

from __future__ import annotations

from collections.abc import Sequence

from laggard.workloads.specification.training import Stop

EVALUATIONS_IN_A_ROW = 3


def accuracy_reached(accuracies: Sequence[float], stop: Stop) -> bool:
    """Whether the last three evaluations in a row reached the accuracy."""
    if stop.accuracy is None or len(accuracies) < EVALUATIONS_IN_A_ROW:
        return False
    return all(accuracy >= stop.accuracy for accuracy in accuracies[-EVALUATIONS_IN_A_ROW:])


def is_last_by_steps(step: int, stop: Stop) -> bool:
    """Whether a step (from 0) is the last one allowed."""
    return stop.steps is not None and step + 1 >= stop.steps


def is_last_by_time(elapsed_s: float, stop: Stop) -> bool:
    """Whether the step about to begin, `elapsed_s` virtual seconds after the first, is the last
    one.
    """
    return stop.time_s is not None and elapsed_s >= stop.time_s
