"""State of a model as one vector.

The vector contains the parameters, then the floating-point buffers (running statistics of
BatchNorm).
"""

from __future__ import annotations

import torch
from torch import nn


class FlatState:
    """Access to a model as one vector, so that it can be sent in one piece.

    Args:
        model: the model; all its numbers must have one type and be on one device.

    Attributes:
        parameters: number of parameters.
        bytes: size of the vector in bytes.
    """

    def __init__(self, model: nn.Module) -> None:
        self._parameters = list(model.parameters())
        parameters = [parameter.detach() for parameter in self._parameters]
        buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
        self._tensors = [*parameters, *buffers]
        self.parameters = sum(tensor.numel() for tensor in parameters)
        self.bytes = sum(tensor.numel() * tensor.element_size() for tensor in self._tensors)

    def read(self) -> torch.Tensor:
        """Return a copy of the whole state, shape [parameters + buffers]."""
        return torch.cat([tensor.flatten() for tensor in self._tensors])

    def read_gradients(self) -> torch.Tensor:
        """Return the gradients, then the buffers, in the host's memory.

        The shape is that of `read`: a gradient is at the place of its parameter.
        """
        count = len(self._parameters)
        gradients = [_gradient_or_zeros(parameter) for parameter in self._parameters]
        return torch.cat(
            [tensor.flatten() for tensor in (*gradients, *self._tensors[count:])]
        ).cpu()

    def write_gradients(self, gradients: torch.Tensor) -> None:
        """Set the gradients of the parameters, shape [parameters]."""
        offset = 0
        for parameter in self._parameters:
            parameter.grad = gradients[offset : offset + parameter.numel()].view_as(parameter)
            offset += parameter.numel()

    @torch.no_grad()
    def write_buffers(self, buffers: torch.Tensor) -> None:
        """Set the values of the buffers, shape [buffers]."""
        offset = 0
        for tensor in self._tensors[len(self._parameters) :]:
            tensor.copy_(buffers[offset : offset + tensor.numel()].view_as(tensor))
            offset += tensor.numel()

    @torch.no_grad()
    def write(self, state: torch.Tensor) -> None:
        """Set the model's state, shape [parameters + buffers]."""
        offset = 0
        for tensor in self._tensors:
            tensor.copy_(state[offset : offset + tensor.numel()].view_as(tensor))
            offset += tensor.numel()

    def write_average(self, average: torch.Tensor, sent: torch.Tensor) -> None:
        """Set the model to an average that includes its own earlier state `sent`.

        Both vectors have the shape [parameters + buffers] and are on the host. A forward pass has
        changed BatchNorm's statistics since the state was sent. This change is kept. `average` is
        modified.
        """
        # The buffers follow the parameters; only they have changed since the state was sent.
        count = self.parameters
        state = self.read()
        average[count:] += state[count:].cpu() - sent[count:]
        self.write(average.to(state.device))


def _gradient_or_zeros(parameter: nn.Parameter) -> torch.Tensor:
    """Return a parameter's gradient; zero if the loss does not depend on the parameter."""
    return parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
