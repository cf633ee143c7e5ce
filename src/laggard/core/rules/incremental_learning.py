"""Measures of incremental learning, from the accuracies on all tasks after each task.

A[i, j] is the accuracy on task j after training on task i. Average accuracy and backward and
forward transfer are those of D. Lopez-Paz and M. Ranzato (*Gradient episodic memory for continual
learning*, NeurIPS 2017), forgetting that of A. Chaudhry et al. (*Riemannian walk for incremental
learning*, ECCV 2018).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laggard.core.cost_model.arrays import FloatArray
from laggard.core.errors import InputError


@dataclass(frozen=True)
class IncrementalMeasures:
    """Measures of a training on several tasks.

    Attributes:
        accuracy: mean accuracy on all tasks at the end.
        forgetting: mean loss of accuracy since the best one, over all tasks but the last.
        backward_transfer: mean change of accuracy since a task was trained, over all but the last.
        forward_transfer: mean accuracy on a task before it is trained, beyond that of the initial
            model, over all but the first.
    """

    accuracy: float
    forgetting: float
    backward_transfer: float
    forward_transfer: float


def measure_incremental(matrix: FloatArray, initial: FloatArray) -> IncrementalMeasures:
    """Compute the measures.

    Args:
        matrix: accuracy on each task after each task, [T, T].
        initial: accuracy of the initial model on each task, [T].

    Raises:
        InputError: the matrix is not square, or an accuracy is none.

    Examples:
        >>> found = measure_incremental(np.array([[0.9, 0.0], [0.1, 0.8]]), np.array([0.1, 0.1]))
        >>> round(found.accuracy, 3), round(found.forgetting, 3)
        (0.45, 0.8)
    """
    tasks = len(matrix)
    if matrix.shape != (tasks, tasks) or initial.shape != (tasks,) or not tasks:
        raise InputError(
            f"accuracies {matrix.shape} and {initial.shape}: give those of all tasks after each"
            " task, and one of the initial model for each"
        )
    if not all(((each >= 0) & (each <= 1)).all() for each in (matrix, initial)):
        raise InputError("an accuracy is below 0, above 1 or missing: give all of them")
    last = matrix[-1]
    if tasks == 1:
        return IncrementalMeasures(float(last[0]), 0.0, 0.0, 0.0)
    best = matrix[:-1, :-1].max(axis=0)
    trained = np.diag(matrix)[:-1]
    before = np.diag(matrix, k=1)
    return IncrementalMeasures(
        accuracy=float(last.mean()),
        forgetting=float((best - last[:-1]).mean()),
        backward_transfer=float((last[:-1] - trained).mean()),
        forward_transfer=float((before - initial[1:]).mean()),
    )
