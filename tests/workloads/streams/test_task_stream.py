"""Streams: every sample arrives once, in the task of its class, and bad tasks are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.errors import InputError
from laggard.workloads.streams.task_stream import (
    build_class_stream,
    build_domain_stream,
    build_gradual_stream,
    require_disjoint,
    split_classes,
)

LABELS = np.random.default_rng(3).integers(0, 10, 2000)


@given(classes=st.integers(1, 50), data=st.data(), seed=st.none() | st.integers(0, 99))
def test_classes_are_divided_evenly(classes: int, data: st.DataObject, seed: int | None) -> None:
    tasks = data.draw(st.integers(1, classes))
    groups = split_classes(classes, tasks, seed)
    require_disjoint(groups, classes)
    sizes = [len(group) for group in groups]
    assert len(groups) == tasks
    assert max(sizes) - min(sizes) <= 1
    assert groups == split_classes(classes, tasks, seed)


def test_a_task_has_all_samples_of_its_classes() -> None:
    groups = split_classes(10, 5, seed=7)
    stream = build_class_stream(LABELS, groups)
    assert sorted(np.concatenate(stream.tasks).tolist()) == [*range(2000)]
    assert stream.classes == groups
    for task, group in zip(stream.tasks, groups, strict=True):
        assert {*LABELS[task].tolist()} == {*group}


def test_domains_have_all_classes() -> None:
    stream = build_domain_stream(LABELS, 4, seed=1)
    assert sorted(np.concatenate(stream.tasks).tolist()) == [*range(2000)]
    assert [len(task) for task in stream.tasks] == [500] * 4
    assert all({*LABELS[task].tolist()} == {*range(10)} for task in stream.tasks)


def test_without_borders_classes_come_and_go_gradually() -> None:
    groups = split_classes(10, 5, None)
    stream = build_gradual_stream(LABELS, groups, seed=1)
    assert sorted(np.concatenate(stream.tasks).tolist()) == [*range(2000)]
    share = np.array(
        [[np.isin(LABELS[task], group).mean() for group in groups] for task in stream.tasks]
    )
    # Its own classes are the most frequent ones in every part, and the neighbors' come next.
    assert (share.argmax(axis=1) == np.arange(5)).all()
    assert 0.4 < share[2, 2] < 0.95
    assert share[0, 4] == share[4, 0] == 0.0


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (((0, 1), (1, 2)), "class 1 is in task 0 and in task 1"),
        (((0,), (2,)), "class 1 is in no task"),
        (((0, 1), (2, 3)), "class 3 of task 1 is never announced"),
        (((0, 1, 2), ()), "task 1 has no classes"),
    ],
)
def test_tasks_must_be_disjoint(groups: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        require_disjoint(groups, 3)


def test_impossible_tasks_are_refused() -> None:
    with pytest.raises(InputError, match="11 tasks of 10 classes"):
        split_classes(10, 11, None)
    with pytest.raises(InputError, match="task 1 has no training samples: its classes 5 have none"):
        build_class_stream(np.array([0, 0, 1]), ((0, 1), (5,)))
    with pytest.raises(InputError, match="4 tasks of 3 samples"):
        build_domain_stream(np.array([0, 0, 1]), 4, 1)
