"""A model as one vector: its parameters, then its buffers of real numbers (BatchNorm's running statistics)."""

from __future__ import annotations

import torch
from torch import nn


class FlatState:
    """Reads and writes a model as one vector, so that it travels in one piece.

    Args:
        model: whose; all its numbers are of one type and on one device.
    """

    def __init__(self, model: nn.Module) -> None:
        parameters = [parameter.detach() for parameter in model.parameters()]
        buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
        self._tensors = [*parameters, *buffers]
        self.parameters = sum(tensor.numel() for tensor in parameters)
        self.bytes = sum(tensor.numel() * tensor.element_size() for tensor in self._tensors)

    def read(self) -> torch.Tensor:
        """A copy of all of it, shape [parameters + buffers]."""
        return torch.cat([tensor.flatten() for tensor in self._tensors])

    @torch.no_grad()
    def write(self, state: torch.Tensor) -> None:
        """Make the model what `state` says, shape [parameters + buffers]."""
        offset = 0
        for tensor in self._tensors:
            tensor.copy_(state[offset : offset + tensor.numel()].view_as(tensor))
            offset += tensor.numel()
