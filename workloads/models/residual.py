"""Basic residual block, and networks that stack such blocks.

Source: He et al., "Deep residual learning for image recognition", 2016.
"""

from __future__ import annotations

import torch
from torch import nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut, which is projected if the shape changes.

    Args:
        channels_in: channels of the input.
        channels_out: channels of the output.
        stride: stride of the first convolution; 2 halves height and width.
    """

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(),
            nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride, bias=False),
                nn.BatchNorm2d(channels_out),
            )

    def forward(self, x_nchw: torch.Tensor) -> torch.Tensor:
        """Compute output images from input images, both (batch, channels, height, width)."""
        return torch.relu(self.residual(x_nchw) + self.shortcut(x_nchw))


def residual_network(
    channels_in: int, classes: int, widths: tuple[int, ...], blocks_per_stage: int
) -> nn.Module:
    """Build a residual network: a 3x3 stem, stages of basic blocks, and one dense layer.

    Every stage except the first halves the image. A global average precedes the dense layer.

    Args:
        channels_in: channels of the images.
        classes: number of outputs.
        widths: channels of each stage.
        blocks_per_stage: blocks in each stage.
    """
    layers: list[nn.Module] = [
        nn.Conv2d(channels_in, widths[0], 3, padding=1, bias=False),
        nn.BatchNorm2d(widths[0]),
        nn.ReLU(),
    ]
    channels = widths[0]
    for stage, width in enumerate(widths):
        for block in range(blocks_per_stage):
            layers.append(BasicBlock(channels, width, 2 if stage > 0 and block == 0 else 1))
            channels = width
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)
    )
