"""Two convolutions and two dense layers, after LeNet (LeCun et al., 1998)."""

from __future__ import annotations

from torch import nn

GRID = 4


def build(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Small convolutional network; 38 k parameters on 1x8x8 images.

    Args:
        input_shape: (channels, height, width).
        classes: number of outputs.
    """
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(GRID),
        nn.Flatten(),
        nn.Linear(32 * GRID * GRID, 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )
