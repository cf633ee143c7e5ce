"""A rank's model that others move while the rank learns: what was learnt from an older one goes into the present one; pure."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Reading:
    """A rank's model, which nobody changes, and how many updates it has had."""

    version: int
    model: torch.Tensor


class CurrentModel:
    """Models are replaced, never changed in place.

    Args:
        model: to begin with, of one dimension, on the host.

    Attributes:
        reading: the model as it is now.
    """

    def __init__(self, model: torch.Tensor) -> None:
        self.reading = Reading(0, model)

    def learn(self, read: Reading, learnt: torch.Tensor) -> Reading:
        """What was learnt from a model that was read goes into the model as it is now.

        Returns:
            The model after it; between the versions lie the updates by others.
        """
        now = self.reading
        unchanged = now.version == read.version
        self.replace(learnt if unchanged else now.model + (learnt - read.model))
        return self.reading

    def replace(self, model: torch.Tensor) -> None:
        """An update."""
        self.reading = Reading(self.reading.version + 1, model)
