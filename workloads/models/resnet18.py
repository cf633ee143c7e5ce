"""ResNet-18 with a 3x3 stem for small images (He et al., 2016, table 1)."""

from __future__ import annotations

from torch import nn

from laggard.workloads.models.residual import residual_network


def build(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build ResNet-18, which has 11 M parameters.

    Args:
        input_shape: (channels, height, width).
        classes: number of outputs.
    """
    return residual_network(input_shape[0], classes, (64, 128, 256, 512), 2)
