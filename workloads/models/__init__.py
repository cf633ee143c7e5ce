"""Models that `workload.yaml` can name, each in its own file, and models of the user's own.

Read `build_model` first. A model of the user's own is named `package.module:callable`. This module
imports torch only when a model is built, so that a scenario is checked quickly. This package may
import the core and `specification/`.
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
    """Build a model whose weights are drawn from `seed`.

    Every rank and the evaluator thus build the same model.

    Args:
        name: one of `MODEL_NAMES`, or `package.module:callable`, which is called with
            `input_shape` and `classes`.
        input_shape: (channels, height, width) of an image, or (length,) of a token sequence.
        classes: number of outputs.
        seed: seed of torch's generator.
        vocabulary: number of different tokens; None for images.

    Raises:
        InputError: the model cannot process this input, or the callable does not return a module.
    """
    import torch
    from torch import nn

    torch.manual_seed(seed)
    if name not in MODEL_NAMES:
        model = load_callable(name)(input_shape, classes)
        if not isinstance(model, nn.Module):
            raise InputError(
                f"{name} returned a {type(model).__name__} — it must return a torch.nn.Module"
            )
        return model
    if name == "transformer":
        from laggard.workloads.models.transformer import Transformer

        return Transformer(input_shape, classes, vocabulary)
    if len(input_shape) != 3:
        raise InputError(
            f"model {name} takes images, but this dataset contains tokens — use the transformer"
        )
    module = importlib.import_module(f"laggard.workloads.models.{name}")
    built = module.build(input_shape, classes)
    assert isinstance(built, nn.Module)
    return built
