"""Two dense layers: the cheapest model that learns."""

from __future__ import annotations

import math

from torch import nn

HIDDEN = 128


def build(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build a multilayer perceptron with one hidden layer of 128.

    Args:
        input_shape: (channels, height, width).
        classes: number of outputs.
    """
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(input_shape), HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, classes),
    )
