"""ResNet-8: the CIFAR residual network of depth 6n + 2 with n = 1.

Source: He et al., 2016, section 4.2.
"""

from __future__ import annotations

from torch import nn

from laggard.workloads.models.residual import residual_network


def build(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build ResNet-8, which has 78 k parameters.

    Args:
        input_shape: (channels, height, width).
        classes: number of outputs.
    """
    return residual_network(input_shape[0], classes, (16, 32, 64), 1)
