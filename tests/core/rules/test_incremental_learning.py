"""Measures of incremental learning against cases whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.errors import InputError
from laggard.core.rules.incremental_learning import measure_incremental


def test_a_model_that_only_knows_its_last_task_forgets_everything() -> None:
    matrix = np.eye(5)
    found = measure_incremental(matrix, np.zeros(5))
    assert found.accuracy == pytest.approx(0.2)
    assert found.forgetting == 1.0
    assert found.backward_transfer == -1.0
    assert found.forward_transfer == 0.0


def test_a_model_that_never_forgets() -> None:
    matrix = np.tril(np.ones((4, 4)))
    found = measure_incremental(matrix, np.zeros(4))
    assert (found.accuracy, found.forgetting, found.backward_transfer) == (1.0, 0.0, 0.0)


def test_later_tasks_may_help_earlier_ones() -> None:
    matrix = np.array([[0.6, 0.3, 0.2], [0.7, 0.8, 0.4], [0.9, 0.7, 0.9]])
    found = measure_incremental(matrix, np.array([0.1, 0.1, 0.1]))
    assert found.accuracy == pytest.approx((0.9 + 0.7 + 0.9) / 3)
    # The first task was never better than at the end, and the second one lost a tenth.
    assert found.forgetting == pytest.approx((0.7 - 0.9 + 0.8 - 0.7) / 2)
    assert found.backward_transfer == pytest.approx((0.9 - 0.6 + 0.7 - 0.8) / 2)
    assert found.forward_transfer == pytest.approx((0.3 - 0.1 + 0.4 - 0.1) / 2)


@given(tasks=st.integers(2, 8), seed=st.integers(0, 1000))
def test_forgetting_is_at_least_the_negative_backward_transfer(tasks: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    found = measure_incremental(rng.random((tasks, tasks)), rng.random(tasks))
    assert found.forgetting >= -found.backward_transfer - 1e-12
    assert 0 <= found.accuracy <= 1


@pytest.mark.parametrize(
    ("matrix", "initial"),
    [
        (np.ones((2, 3)), np.ones(2)),
        (np.ones((2, 2)), np.ones(3)),
        (np.ones((0, 0)), np.ones(0)),
        (np.full((2, 2), np.nan), np.ones(2)),
        (np.full((2, 2), 1.5), np.ones(2)),
    ],
)
def test_accuracies_that_are_none_are_refused(matrix: np.ndarray, initial: np.ndarray) -> None:
    with pytest.raises(InputError):
        measure_incremental(matrix, initial)
