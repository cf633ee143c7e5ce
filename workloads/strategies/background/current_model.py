"""Model of a rank that other ranks change while the rank computes an update; pure.

An update computed from an older version is applied to the current version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ModelVersion:
    """Model of a rank, which must not be modified, and its number of updates."""

    version: int
    model: torch.Tensor


class CurrentModel:
    """Current model of a rank; versions are replaced, never modified in place.

    An average of all models and pairwise exchanges may overlap. Both pull the model in the same
    direction, so applying both would overshoot. The mean therefore replaces all that exchanges
    have changed since the model was contributed. The rank's own updates made meanwhile are kept.

    Args:
        model: initial model, one-dimensional, in host memory.

    Attributes:
        latest: current version of the model.
        means_applied: number of averages of all models that have been applied.
    """

    def __init__(self, model: torch.Tensor) -> None:
        self.latest = ModelVersion(0, model)
        self.means_applied = 0
        self._is_contributed = False
        self._exchanged_delta: torch.Tensor | None = None

    def learn(self, read: ModelVersion, updated: torch.Tensor) -> ModelVersion:
        """Apply the update computed from an earlier version to the current model.

        Args:
            read: version that the update was computed from.
            updated: that version after the update.

        Returns:
            The new version. The version numbers between `read` and it are updates by others.
        """
        now = self.latest
        # Without updates by others, the result is stored as it is, without rounding.
        unchanged = now.version == read.version
        self.replace(updated if unchanged else now.model + (updated - read.model))
        return self.latest

    def move(self, delta: torch.Tensor) -> None:
        """Apply the change of a pairwise exchange."""
        self.replace(self.latest.model + delta)
        if self._is_contributed:
            self._exchanged_delta = (
                delta if self._exchanged_delta is None else self._exchanged_delta + delta
            )

    def contribute(self) -> torch.Tensor:
        """Return the current model as the contribution to an average of all models."""
        self._is_contributed, self._exchanged_delta = True, None
        return self.latest.model

    def withdraw_contribution(self) -> None:
        """Forget the contribution to an average that was abandoned or only measured."""
        self._is_contributed, self._exchanged_delta = False, None

    def apply_mean(self, delta: torch.Tensor) -> None:
        """Apply the mean of all models in place of the exchanges made since the contribution.

        Args:
            delta: the mean minus the contribution.
        """
        # Subtracting the exchanges since the contribution undoes them (see the class).
        delta_left = delta if self._exchanged_delta is None else delta - self._exchanged_delta
        self._is_contributed, self._exchanged_delta = False, None
        self.means_applied += 1
        self.replace(self.latest.model + delta_left)

    def replace(self, model: torch.Tensor) -> None:
        """Store a new version of the model."""
        self.latest = ModelVersion(self.latest.version + 1, model)
