"""Trainings on a stream: a naive one forgets, and one that rehearses forgets less."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from laggard.workloads.datasets import digits
from laggard.workloads.streams.task_accuracies import read_task_accuracies

if TYPE_CHECKING:
    from tests.workloads.conftest import Train

COMMON = {
    "model": "mlp",
    "dataset": "digits",
    "batch_size": 16,
    "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
    "stream": {"tasks": 5, "passes": 4},
}


def count_steps() -> int:
    """Number of steps of the whole stream."""
    sizes = np.bincount(digits.load().train_labels).reshape(5, 2).sum(axis=1)
    return int((4 * -(-sizes // 16)).sum())


@pytest.mark.parametrize("strategy", ["allreduce", "local_sgd"])
def test_rehearsal_keeps_what_a_naive_training_forgets(train: Train, strategy: str) -> None:
    found, stop = {}, {"stop": {"steps": count_steps()}}
    for name, more in (("naive", {}), ("rehearsal", {"rehearsal": {"size": 100, "sample": 8}})):
        training = train(COMMON | stop | {"strategy": strategy} | more, 2)
        record = read_task_accuracies(training.output_dir)
        assert record is not None
        assert record.measures is not None
        found[name] = record.measures
        # Each task is learnt when it is there.
        assert record.matrix.diagonal().min() > 0.8
    assert found["naive"].forgetting > 0.8
    assert found["rehearsal"].forgetting < 0.4
    assert found["rehearsal"].accuracy > 2 * found["naive"].accuracy
