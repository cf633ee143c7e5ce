"""ResNet-18 with the 3x3 stem that small images want (He et al., 2016, table 1)."""

from __future__ import annotations

from torch import nn

from laggard.workloads.models.residual import residual_network


def build(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """ResNet-18, 11 M parameters.

    Args:
        input_shape: (channels, height, width).
        classes: number of outputs.
    """
    return residual_network(input_shape[0], classes, (64, 128, 256, 512), 2)
