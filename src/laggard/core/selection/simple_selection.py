"""ClientSelection by chance and by speed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from laggard.core.selection.failure_pauses import FailurePauses
from laggard.core.selection.selector import (
    ClientCandidate,
    ClientChoice,
    ClientResult,
    ClientSelection,
)


@dataclass
class RandomSelector:
    """Each client has the same chance (McMahan et al., AISTATS 2017)."""

    seed: int
    _pauses: FailurePauses = field(default_factory=FailurePauses)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)  # noqa: S311 - a simulation, not a secret

    def report(self, result: ClientResult) -> None:
        """Take note of a result (see `ClientSelector`)."""
        self._pauses.report(result)

    def select(self, candidates: Sequence[ClientCandidate], count: int) -> ClientSelection:
        """Select clients (see `ClientSelector`)."""
        free, _ = self._pauses.begin_round(candidates)
        chosen = self._rng.sample(free, min(count, len(free)))
        return ClientSelection(
            tuple(ClientChoice(each.client, "drawn") for each in chosen), count - len(chosen)
        )


@dataclass
class FastestSelector:
    """Those with the shortest predicted round; of equal ones, those with the most samples."""

    _pauses: FailurePauses = field(default_factory=FailurePauses)

    def report(self, result: ClientResult) -> None:
        """Take note of a result (see `ClientSelector`)."""
        self._pauses.report(result)

    def select(self, candidates: Sequence[ClientCandidate], count: int) -> ClientSelection:
        """Select clients (see `ClientSelector`)."""
        free, _ = self._pauses.begin_round(candidates)
        free.sort(key=lambda each: (each.predicted_s, -each.samples, each.client))
        return ClientSelection(
            tuple(ClientChoice(each.client, f"{each.predicted_s:.3g} s") for each in free[:count]),
            max(count - len(free), 0),
        )
