"""A rank's model that others move while the rank learns: what was learnt from an older one goes
into the present one; pure.
"""

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

    An average of all and exchanges of two may be under way together. Both pull a model the same
    way, and both pulls would carry it as far out on the other side: so the mean stands for all that
    exchanges have moved since the model was brought into it. What was learnt meanwhile stays.

    Args:
        model: to begin with, of one dimension, on the host.

    Attributes:
        reading: the model as it is now.
        means: averages of all that it has taken.
    """

    def __init__(self, model: torch.Tensor) -> None:
        self.reading = Reading(0, model)
        self.means = 0
        self._brought = False
        self._moved: torch.Tensor | None = None

    def learn(self, read: Reading, learnt: torch.Tensor) -> Reading:
        """What was learnt from a model that was read goes into the model as it is now.

        Returns:
            The model after it; between the versions lie the updates by others.
        """
        now = self.reading
        unchanged = now.version == read.version
        self.replace(learnt if unchanged else now.model + (learnt - read.model))
        return self.reading

    def move(self, by: torch.Tensor) -> None:
        """An exchange of two moves it."""
        self.replace(self.reading.model + by)
        if self._brought:
            self._moved = by if self._moved is None else self._moved + by

    def bring(self) -> torch.Tensor:
        """The model as it goes into an average of all."""
        self._brought, self._moved = True, None
        return self.reading.model

    def take_back(self) -> None:
        """The average came to nothing."""
        self._brought, self._moved = False, None

    def take_mean(self, by: torch.Tensor) -> None:
        """The average is there: the mean less what was brought, instead of what exchanges have
        moved since.
        """
        moved = by if self._moved is None else by - self._moved
        self._brought, self._moved = False, None
        self.means += 1
        self.replace(self.reading.model + moved)

    def replace(self, model: torch.Tensor) -> None:
        """An update."""
        self.reading = Reading(self.reading.version + 1, model)
