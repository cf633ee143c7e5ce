"""The models that `workload.yaml` can name, each in its own file, and the user's own by
`package.module:callable`.

This module imports no torch until a model is built, so that a scenario is checked quickly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from laggard.core.errors import InputError
from laggard.workloads.specification.callables import load_callable

if TYPE_CHECKING:
    from torch import nn

MODEL_NAMES = ("mlp", "cnn", "resnet8", "resnet18", "vgg11", "transformer", "wide_mlp", "wide_cnn")


def build_model(
    name: str, input_shape: tuple[int, ...], classes: int, seed: int, vocabulary: int | None = None
) -> nn.Module:
    """A model with weights drawn from `seed`, so that every rank and the evaluator build the same.

    Args:
        name: one of `MODEL_NAMES`, or `package.module:callable`, called with `input_shape` and
            `classes`.
        input_shape: (channels, height, width) of an image, or (length,) of a token sequence.
        classes: number of outputs.
        seed: of torch's generator.
        vocabulary: number of different tokens; None for images.

    Raises:
        InputError: the model cannot take this input, or the callable does not return a module.
    """
    import torch
    from torch import nn

    torch.manual_seed(seed)
    if name not in MODEL_NAMES:
        model = load_callable(name)(input_shape, classes)
        if not isinstance(model, nn.Module):
            raise InputError(f"{name} returned a {type(model).__name__} — return a torch.nn.Module")
        return model
    if name == "transformer":
        from laggard.workloads.models.transformer import Transformer

        return Transformer(input_shape, classes, vocabulary)
    if len(input_shape) != 3:
        raise InputError(
            f"model {name} takes images, and this dataset gives tokens — use the transformer"
        )
    module = importlib.import_module(f"laggard.workloads.models.{name}")
    built = module.build(input_shape, classes)
    assert isinstance(built, nn.Module)
    return built
