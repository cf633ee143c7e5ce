"""Steps of a client: all samples once, and never fewer in a step than the model can take."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from laggard.workloads.clients.local_steps import list_local_steps
from laggard.workloads.datasets.dataset import Batch
from laggard.workloads.datasets.partition import Share
from laggard.workloads.strategies.federated.local_training import (
    LocalTrainer,
    LocalTraining,
    NoTracer,
)
from laggard.workloads.tracing.batch_loader import pad_indices


@given(st.integers(0, 200), st.integers(1, 40), st.integers(1, 2))
def test_steps_have_all_samples(samples: int, batch: int, fewest: int) -> None:
    steps = list_local_steps(samples, batch, fewest)
    assert sum(steps) == samples
    assert all(each <= batch + fewest - 1 for each in steps)
    assert all(each == batch for each in steps[:-1])
    if samples >= fewest and batch >= fewest:
        assert all(each >= fewest for each in steps)


@pytest.mark.parametrize("samples", [0, 1, 2, 5])
def test_a_model_with_batch_norm_takes_any_number_of_samples(samples: int) -> None:
    """A rest of one sample has no variance; a client with one sample has two copies of it."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    trainer = LocalTrainer(
        LocalTraining(epochs=2, batch=2, proximal=0.0),
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        1,
        NoTracer(),
    )
    rows = pad_indices(np.arange(samples), 2)
    batch = Batch(torch.randn(8, 3)[rows], torch.tensor([0, 1] * 4)[rows])
    answer = trainer.train(0, 0, batch, Share(np.arange(samples), 8, 1))
    if samples:
        assert math.isfinite(answer.loss)
        assert answer.utility > 0
        assert answer.vector[:-8].abs().sum() > 0
    else:
        assert math.isnan(answer.loss)
        assert answer.utility == 0
        assert answer.vector[:-8].abs().sum() == 0
