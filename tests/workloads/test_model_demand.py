"""Demand of the models: operations and parameters counted by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from laggard.core.cost_model.demand import ModelDemand
from laggard.core.errors import InputError
from laggard.workloads.datasets.sample_shape import SampleShape, find_sample_shape
from laggard.workloads.models import MODEL_NAMES
from laggard.workloads.models.model_demand import measure_model_demand
from laggard.workloads.workload import Workload


def build_pairs(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Refuse all samples but those of two channels."""
    return nn.Sequential(nn.Conv2d(2, 3, 1), nn.Flatten(), nn.LazyLinear(classes))


def build_scalar(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Compute one number a sample, which is no classification."""
    return nn.Sequential(nn.Flatten(0), nn.Linear(128, 1), nn.Flatten(0))


def test_dense_layers_by_hand() -> None:
    """Each layer once forward and once for its weights; the second also for its input."""
    first, second = 64 * 128, 128 * 10
    expected = ModelDemand(2 * (2 * first + 3 * second), 4, 4 * (first + 128 + second + 10))
    assert measure_model_demand("mlp", (1, 8, 8), 10) == expected


def test_convolutions_by_hand() -> None:
    first, second = 8 * 8 * 9 * 1 * 16, 8 * 8 * 9 * 16 * 32
    dense = (32 * 16 * 64, 64 * 10)
    found = measure_model_demand("cnn", (1, 8, 8), 10)
    assert found.flops_per_sample == 2 * (2 * first + 3 * second + 3 * sum(dense))
    assert found.tensors == 8


def test_attention_counts() -> None:
    """Its operations grow with the square of the length: two products of width 64 in each of two
    layers, forward and twice backward, two operations each."""
    one, two, three = (
        measure_model_demand("transformer", (length,), 10, vocabulary=50).flops_per_sample
        for length in (8, 16, 24)
    )
    assert one - 2 * two + three == 2 * 8**2 * (2 * 64 * 2 * 3 * 2)


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_every_model_has_a_demand(name: str) -> None:
    found = measure_model_demand(name, (1, 8, 8), 10)
    assert min(found.flops_per_sample, found.tensors, found.parameter_bytes) > 0
    # At least one multiplication and addition a parameter, forward and backward; not so for the
    # parameters of norms, biases and positions, which are few.
    assert found.flops_per_sample > found.parameter_bytes / 4


def test_counting_leaves_the_random_numbers_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    measure_model_demand("resnet8", (1, 8, 8), 10)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("name", ["build_pairs", "build_scalar"])
def test_a_model_that_cannot_be_trained_on_such_samples_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=rf"{name} cannot be trained .* \(1, 8, 8\): .* — give"):
        measure_model_demand(f"{__name__}:{name}", (1, 8, 8), 10)


@pytest.mark.parametrize(
    ("dataset", "shape"),
    [
        ("digits", SampleShape((1, 8, 8), 10)),
        ({"name": "synthetic", "size": 16, "classes": 3}, SampleShape((3, 16, 16), 3)),
        (
            {"name": "synthetic", "kind": "tokens", "length": 9, "train": 10_000_000},
            SampleShape((9,), 10, 256),
        ),
    ],
)
def test_the_shape_of_samples_is_found(dataset: object, shape: SampleShape) -> None:
    settings = Workload.model_validate({"model": "mlp", "dataset": dataset})
    assert find_sample_shape(settings) == shape
