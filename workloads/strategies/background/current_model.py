"""A rank's model that others move while the rank learns: what was learned from an older one goes
into the present one; pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ModelVersion:
    """A rank's model, which nobody changes, and how many updates it has had."""

    version: int
    model: torch.Tensor


class CurrentModel:
    """Models are replaced, never changed in place.

    An average of all and exchanges of two may be under way together. Both pull a model the same
    way, and both pulls would carry it as far out on the other side: so the mean stands for all that
    exchanges have moved since the model was brought into it. What was learned meanwhile stays.

    Args:
        model: to begin with, of one dimension, on the host.

    Attributes:
        latest: the model as it is now.
        means_applied: averages of all that it has taken.
    """

    def __init__(self, model: torch.Tensor) -> None:
        self.latest = ModelVersion(0, model)
        self.means_applied = 0
        self._is_contributed = False
        self._exchanged_delta: torch.Tensor | None = None

    def learn(self, read: ModelVersion, updated: torch.Tensor) -> ModelVersion:
        """Apply the update learned from a model read earlier to the current model.

        Returns:
            The model after it; between the versions lie the updates by others.
        """
        now = self.latest
        unchanged = now.version == read.version
        self.replace(updated if unchanged else now.model + (updated - read.model))
        return self.latest

    def move(self, delta: torch.Tensor) -> None:
        """An exchange of two moves it."""
        self.replace(self.latest.model + delta)
        if self._is_contributed:
            self._exchanged_delta = (
                delta if self._exchanged_delta is None else self._exchanged_delta + delta
            )

    def contribute(self) -> torch.Tensor:
        """The model as it goes into an average of all."""
        self._is_contributed, self._exchanged_delta = True, None
        return self.latest.model

    def withdraw_contribution(self) -> None:
        """The average came to nothing."""
        self._is_contributed, self._exchanged_delta = False, None

    def apply_mean(self, delta: torch.Tensor) -> None:
        """The average is there: the mean less what was brought, instead of what exchanges have
        moved since.
        """
        delta_left = delta if self._exchanged_delta is None else delta - self._exchanged_delta
        self._is_contributed, self._exchanged_delta = False, None
        self.means_applied += 1
        self.replace(self.latest.model + delta_left)

    def replace(self, model: torch.Tensor) -> None:
        """An update."""
        self.latest = ModelVersion(self.latest.version + 1, model)
