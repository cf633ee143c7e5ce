"""A spiking network: leaky integrate-and-fire neurons, trained with surrogate gradients.

J. K. Eshraghian et al., "Training spiking neural networks using lessons from deep learning",
Proceedings of the IEEE 111(9), 2023; the surrogate gradient is that of their package snntorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from laggard.core.errors import PrerequisiteError

TIME_STEPS = 8
DECAY = 0.9
THRESHOLD = 1.0
WIDTH = 128


class SpikingNetwork(nn.Module):
    """Two layers of spiking neurons, which see the same image at every time step.

    Args:
        inputs: values of an image.
        classes: number of classes.
    """

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        try:
            from snntorch.surrogate import fast_sigmoid
        except ImportError as error:
            raise PrerequisiteError(
                "the spiking network needs snntorch", 'pip install "laggard[gallery]"'
            ) from error
        self._fire: Callable[[torch.Tensor], torch.Tensor] = fast_sigmoid()
        self.hidden, self.output = nn.Linear(inputs, WIDTH), nn.Linear(WIDTH, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the mean of the last layer's membrane potentials over time, [n, classes]."""
        current = self.hidden(images.flatten(1))
        first, last = torch.zeros_like(current), torch.zeros(len(images), self.output.out_features)
        total = torch.zeros_like(last)
        for _ in range(TIME_STEPS):
            # Neurons of snntorch keep their state in buffers, whose sizes would differ by worker.
            first = DECAY * first + current
            spikes = self._fire(first - THRESHOLD)
            first = first - THRESHOLD * spikes.detach()
            last = DECAY * last + self.output(spikes)
            total = total + last
        return total / TIME_STEPS


def build(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build the network for images of a shape, (channels, height, width)."""
    return SpikingNetwork(math.prod(input_shape), classes)
