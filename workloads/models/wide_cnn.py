"""The small convolutional network with three times the channels: much to compute, little to send;
what a slow host is hard on.
"""

from __future__ import annotations

from torch import nn

from laggard.workloads.models.cnn import convolutional


def build(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Convolutional network of 48 and 96 channels; 141 k parameters on 1x8x8 images, and no layer
    that mixes samples.

    Args:
        input_shape: (channels, height, width).
        classes: number of outputs.
    """
    return convolutional(input_shape, classes, 48)
