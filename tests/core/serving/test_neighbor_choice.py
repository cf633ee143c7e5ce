"""Which neighbors are asked, and what their votes become."""

from __future__ import annotations

import numpy as np
import pytest

from laggard.core.serving.neighbor_choice import (
    Neighbor,
    choose_neighbors,
    combine_answers,
    measure_errors,
)

WRONG = np.array(
    [
        [1, 1, 0, 0, 0, 0],  # the device itself
        [1, 1, 0, 0, 0, 0],  # errs where it does
        [0, 0, 1, 1, 0, 0],  # errs elsewhere
        [0, 0, 0, 0, 1, 1],  # errs elsewhere, too
    ],
    dtype=bool,
)


def neighbor(node: int, answer_s: float = 0.1) -> Neighbor:
    return Neighbor(node, answer_s, 1 - float(WRONG[node].mean()))


def test_models_that_err_elsewhere_are_asked() -> None:
    found = choose_neighbors(0, [neighbor(1), neighbor(2), neighbor(3)], WRONG, 1.0, most=2)
    assert set(found) == {2, 3}


def test_who_answers_too_late_is_not_asked() -> None:
    neighbors = [neighbor(1), neighbor(2, answer_s=2.0), neighbor(3)]
    assert 2 not in choose_neighbors(0, neighbors, WRONG, 1.0, most=3)


def test_of_equals_the_faster_one_is_asked() -> None:
    same = np.repeat(WRONG[:1], 3, axis=0)
    found = choose_neighbors(0, [neighbor(1, 0.3), neighbor(2, 0.2)], same, 1.0, most=1)
    assert found == (2,)


def test_nobody_is_asked_without_neighbors() -> None:
    assert choose_neighbors(0, [], WRONG, 1.0, most=3) == ()


def test_errors_are_where_answers_differ_from_labels() -> None:
    answers, labels = np.array([[1, 2], [1, 1]]), np.array([1, 2])
    assert measure_errors(answers, labels).tolist() == [[False, False], [False, True]]


def test_probabilities_are_averaged() -> None:
    sure, unsure = np.log([[0.9, 0.1]]), np.log([[0.4, 0.6]])
    assert combine_answers({0: sure, 1: unsure})[0] == pytest.approx([0.65, 0.35])


def test_large_logits_do_not_overflow() -> None:
    found = combine_answers({0: np.array([[1e4, 0.0]])})
    assert found[0] == pytest.approx([1.0, 0.0])
