"""Three wide dense layers.

The model has much to send (5.4 MB of float32) and little to compute, so a distant link affects it
strongly.
"""

from __future__ import annotations

import math

from torch import nn

HIDDEN = 1120


def build(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build a multilayer perceptron with two hidden layers of 1120.

    It has 1.3 M parameters on 1x8x8 images.

    Args:
        input_shape: (channels, height, width).
        classes: number of outputs.
    """
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(input_shape), HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, classes),
    )
