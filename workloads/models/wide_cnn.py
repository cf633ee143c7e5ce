"""Small convolutional network with three times the channels.

It has much to compute and little to send, so a slow host affects it strongly.
"""

from __future__ import annotations

from torch import nn

from laggard.workloads.models.cnn import convolutional


def build(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build a convolutional network of 48 and 96 channels.

    It has 141 k parameters on 1x8x8 images, and no layer that mixes samples.

    Args:
        input_shape: (channels, height, width).
        classes: number of outputs.
    """
    return convolutional(input_shape, classes, 48)
