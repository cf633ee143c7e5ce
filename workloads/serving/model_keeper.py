"""Model of the parameter server, and its updates from workers' gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from laggard.core.rules.server_rule import Push, Update
from laggard.workloads.compress.codec import create_vector_codec
from laggard.workloads.compress.gradient_packer import GradientPacker
from laggard.workloads.compress.parameters import Compression
from laggard.workloads.models.flat_state import FlatState


class ModelKeeper:
    """Model on the server and its updates.

    Args:
        model: model in the state that all workers begin with.
        optimizer: optimizer of the model's parameters.
        world_size: number of workers, by which they scaled their gradients.
        compression: compression of pushed gradients; None for none.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        world_size: int,
        compression: Compression | None = None,
    ) -> None:
        self.model, self.version = model, 0
        self._optimizer, self._world_size = optimizer, world_size
        self._state = FlatState(model)
        self._pending_gradients: dict[tuple[int, int], torch.Tensor] = {}
        self._read: torch.Tensor | None = None
        codec = create_vector_codec(compression)
        self._packer = (
            None if codec is None else GradientPacker(codec, self._state.parameters, self.read())
        )

    def hold(self, push: Push, tensor: torch.Tensor) -> None:
        """Keep a worker's gradient, and its buffers, until it is applied."""
        self._pending_gradients[push.rank, push.clock] = tensor

    def clip(self, push: Push, tensor: torch.Tensor, longest: float) -> bool:
        """Shorten a change of the weights in place, if it is longer; return whether it was.

        Args:
            push: answer of a client, which scaled its change as gradients are.
            tensor: the change and the buffers, shape [parameters + buffers].
            longest: longest Euclidean norm of the change.
        """
        if not push.samples:
            return False
        change = tensor[: self._state.parameters]
        scale = push.samples * self._world_size / push.batch_size
        norm = float(torch.linalg.vector_norm(change)) / scale
        if not norm > longest:
            return False
        change *= longest / norm
        return True

    def forget(self, push: Push) -> None:
        """Drop a gradient that will not be applied."""
        self._pending_gradients.pop((push.rank, push.clock), None)

    def apply(self, update: Update) -> None:
        """Take one optimizer step along the mean gradient of an update's samples.

        The learning rate is multiplied by the update's fraction of a whole step.
        """
        total = self._sum_pushes(update.pushes, update)
        for push in update.pushes:
            self.forget(push)
        self.version += 1
        if not update.samples:
            return
        count = self._state.parameters
        self._state.write_gradients(self._average(total[:count], update))
        for group in self._optimizer.param_groups:
            group["lr"] *= update.fraction
        self._optimizer.step()
        for group in self._optimizer.param_groups:
            group["lr"] /= update.fraction
        self._read = None
        # Buffers, such as BatchNorm's statistics, have no gradient: move them to the workers'
        # mean.
        buffers = total[count:] / len(update.pushes)
        if buffers.numel():
            state = self._state.read()
            state[count:] += update.fraction * (buffers - state[count:])
            self._state.write(state)

    def read_change(self, push: Push) -> torch.Tensor:
        """Return the gradient of a worker that waits to be applied, [parameters]."""
        return self._unpack(push)[: self._state.parameters]

    def _sum_pushes(self, pushes: Sequence[Push], update: Update) -> torch.Tensor:
        """Return the sum of gradients, discounted as in their update, and that of buffers."""
        count, total = self._state.parameters, torch.zeros_like(self.read())
        for push in pushes:
            vector = self._unpack(push)
            total[:count] += update.discounts.get(push.rank, 1.0) * vector[:count]
            total[count:] += vector[count:]
        return total

    def _unpack(self, push: Push) -> torch.Tensor:
        pushed = self._pending_gradients[push.rank, push.clock]
        return pushed if self._packer is None else self._packer.unpack(pushed)

    def _average(self, total: torch.Tensor, update: Update) -> torch.Tensor:
        """Return the mean gradient of an update's samples.

        Workers scaled their gradients by workers / batch size, so that the mean over all workers is
        the batch's. Undo this scale and divide by the samples of this update instead.
        """
        return total * (update.pushes[0].batch_size / (self._world_size * update.samples))

    def read(self) -> torch.Tensor:
        """Return the current model as one vector.

        The tensor is the same until the model changes, so it can be sent without a copy.
        """
        if self._read is None:
            self._read = self._state.read()
        return self._read
