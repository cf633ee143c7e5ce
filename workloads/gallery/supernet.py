"""Neural architecture search: a network whose every layer has several operations to choose from.

Every step trains one random path (Z. Guo et al., "Single path one-shot neural architecture search
with uniform sampling", ECCV 2020). Paths differ in length, so workers differ from step to step. An
evaluation uses the middle operation of every layer.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

LAYERS, WIDTH = 3, 16
KERNELS = (1, 3, 5)


class ChoiceLayer(nn.Module):
    """Layer with an operation for each size of a kernel.

    Args:
        entering: number of channels that enter.
        leaving: number of channels that leave.
    """

    def __init__(self, entering: int, leaving: int) -> None:
        super().__init__()
        self.operations = nn.ModuleList(
            nn.Conv2d(entering, leaving, kernel, padding=kernel // 2) for kernel in KERNELS
        )

    def forward(self, values: torch.Tensor, choice: int) -> torch.Tensor:
        """Return the output of one operation; all parameters get a gradient, which may be zero."""
        found: torch.Tensor = torch.relu(self.operations[choice](values))
        if self.training:
            unused = [
                each.sum() * 0.0
                for number, operation in enumerate(self.operations)
                if number != choice
                for each in operation.parameters()
            ]
            found = found + torch.stack(unused).sum()
        return found


class Supernet(nn.Module):
    """Network of layers with choices.

    Args:
        channels: number of channels of an image.
        pixels: number of its pixels.
        classes: number of classes.
    """

    def __init__(self, channels: int, pixels: int, classes: int) -> None:
        super().__init__()
        sizes = [channels, *(WIDTH,) * LAYERS]
        self.layers = nn.ModuleList(
            ChoiceLayer(entering, leaving) for entering, leaving in pairwise(sizes)
        )
        self.head = nn.Linear(WIDTH * pixels, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of one path, [n, classes]: a random one in training."""
        values = images
        for layer in self.layers:
            middle = len(KERNELS) // 2
            choice = int(torch.randint(len(KERNELS), ())) if self.training else middle
            values = layer(values, choice)
        logits: torch.Tensor = self.head(values.flatten(1))
        return logits


def build(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build the network for images of a shape, (channels, height, width)."""
    channels, height, width = input_shape
    return Supernet(channels, height * width, classes)
