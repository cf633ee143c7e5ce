"""Demand of a model for the cost model: operations, parameter tensors and bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laggard.core.cost_model.demand import ModelDemand
from laggard.core.errors import InputError
from laggard.workloads.models import build_model

if TYPE_CHECKING:
    import torch
    from torch import nn

_SAMPLES = 2
"""Samples of the counted batch; BatchNorm needs two. Counted operations grow in proportion."""


def measure_model_demand(
    name: str, input_shape: tuple[int, ...], classes: int, vocabulary: int | None = None
) -> ModelDemand:
    """Build a model and count the demand of training it.

    Args:
        name: one of `MODEL_NAMES`, or `package.module:callable`.
        input_shape: shape of one sample: (channels, height, width), or (length,) for tokens.
        classes: number of classes.
        vocabulary: number of different tokens; None for images.

    Returns:
        Operations per sample of the forward and the backward pass, tensors, and bytes. Only matrix
        products, convolutions and attention count as operations.

    Raises:
        InputError: the model cannot be built, or cannot be trained on such samples.

    Examples:
        >>> measure_model_demand("mlp", (1, 8, 8), classes=10)
        ModelDemand(flops_per_sample=40448.0, tensors=4, parameter_bytes=38440)
    """
    import torch

    # Building a model seeds torch's generator, whose state belongs to the caller.
    with torch.random.fork_rng(devices=[]):
        model = build_model(name, input_shape, classes, seed=0, vocabulary=vocabulary)
        inputs = (
            torch.rand(_SAMPLES, *input_shape)
            if vocabulary is None
            else torch.randint(vocabulary, (_SAMPLES, *input_shape))
        )
        labels = torch.arange(_SAMPLES) % classes
        try:
            flops = _count_flops(model, inputs, labels)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise InputError(
                f"model {name} cannot be trained on {classes} classes of samples of shape"
                f" {input_shape}: {error} — give the shape of the dataset that it is made for"
            ) from error
    parameters = list(model.parameters())
    return ModelDemand(
        flops / _SAMPLES,
        len(parameters),
        sum(parameter.numel() * parameter.element_size() for parameter in parameters),
    )


def _count_flops(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> int:
    """Return the operations of one training step, a multiplication and an addition being two."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import cross_entropy
    from torch.utils.flop_counter import FlopCounterMode

    # The counter does not know the processor's fused attention, so it sees its matrix products.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
    return int(counter.get_total_flops())
