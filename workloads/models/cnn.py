"""Two convolutions and two dense layers, after LeNet (LeCun et al., 1998)."""

from __future__ import annotations

from torch import nn

# Pooling to a fixed grid makes the size of the dense layers independent of the image size.
GRID = 4


def build(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build a small convolutional network; it has 38 k parameters on 1x8x8 images.

    Args:
        input_shape: (channels, height, width).
        classes: number of outputs.
    """
    return convolutional(input_shape, classes, 16)


def convolutional(input_shape: tuple[int, ...], classes: int, channels: int) -> nn.Module:
    """Build the network with `channels` in the first layer and twice as many in the second."""
    return nn.Sequential(
        nn.Conv2d(input_shape[0], channels, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels, 2 * channels, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(GRID),
        nn.Flatten(),
        nn.Linear(2 * channels * GRID * GRID, 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )
