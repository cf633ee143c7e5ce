"""A model as one vector: its parameters, then its buffers of real numbers (BatchNorm's running
statistics).
"""

from __future__ import annotations

import torch
from torch import nn


class FlatState:
    """Reads and writes a model as one vector, so that it travels in one piece.

    Args:
        model: whose; all its numbers are of one type and on one device.
    """

    def __init__(self, model: nn.Module) -> None:
        self._parameters = list(model.parameters())
        parameters = [parameter.detach() for parameter in self._parameters]
        buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
        self._tensors = [*parameters, *buffers]
        self.parameters = sum(tensor.numel() for tensor in parameters)
        self.bytes = sum(tensor.numel() * tensor.element_size() for tensor in self._tensors)

    def read(self) -> torch.Tensor:
        """A copy of all of it, shape [parameters + buffers]."""
        return torch.cat([tensor.flatten() for tensor in self._tensors])

    def read_gradients(self) -> torch.Tensor:
        """The gradients where `read` has parameters, then the buffers; in the host's memory."""
        count = len(self._parameters)
        gradients = [_gradient_or_zeros(parameter) for parameter in self._parameters]
        return torch.cat(
            [tensor.flatten() for tensor in (*gradients, *self._tensors[count:])]
        ).cpu()

    def write_gradients(self, gradients: torch.Tensor) -> None:
        """Give the parameters their gradients, shape [parameters]."""
        offset = 0
        for parameter in self._parameters:
            parameter.grad = gradients[offset : offset + parameter.numel()].view_as(parameter)
            offset += parameter.numel()

    @torch.no_grad()
    def write_buffers(self, buffers: torch.Tensor) -> None:
        """Give the buffers their values, shape [buffers]."""
        offset = 0
        for tensor in self._tensors[len(self._parameters) :]:
            tensor.copy_(buffers[offset : offset + tensor.numel()].view_as(tensor))
            offset += tensor.numel()

    @torch.no_grad()
    def write(self, state: torch.Tensor) -> None:
        """Make the model what `state` says, shape [parameters + buffers]."""
        offset = 0
        for tensor in self._tensors:
            tensor.copy_(state[offset : offset + tensor.numel()].view_as(tensor))
            offset += tensor.numel()

    def write_average(self, average: torch.Tensor, sent: torch.Tensor) -> None:
        """Make the model an average that its own state went into as it was when it was `sent`, both
        shape [parameters + buffers] on the host.

        BatchNorm's statistics have moved in a forward pass since, and keep what they moved by.
        `average` is changed.
        """
        count = self.parameters
        state = self.read()
        average[count:] += state[count:].cpu() - sent[count:]
        self.write(average.to(state.device))


def _gradient_or_zeros(parameter: nn.Parameter) -> torch.Tensor:
    """Return a parameter's gradient; zero where the loss does not depend on it."""
    return parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
