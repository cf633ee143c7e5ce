"""Pauses of clients whose rounds failed, so that they are not chosen for ever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from laggard.core.selection.selector import ClientCandidate, ClientResult

LONGEST_PAUSE = 64


@dataclass
class FailurePauses:
    """Pauses after failed rounds: 1, 2, 4, … rounds after each failure that follows another.

    A round fails without an answer, or with one whose numbers are not finite.
    """

    round: int = 0
    _failures: dict[int, int] = field(default_factory=dict)
    _ends: dict[int, int] = field(default_factory=dict)

    def report(self, result: ClientResult) -> None:
        """Take note of a client's result in the current round."""
        if not result.is_failure:
            self._failures.pop(result.client, None)
            self._ends.pop(result.client, None)
            return
        failures = self._failures[result.client] = self._failures.get(result.client, 0) + 1
        # Beyond the longest pause, a power of two would only grow without use.
        pause = min(1 << min(failures - 1, LONGEST_PAUSE.bit_length()), LONGEST_PAUSE)
        self._ends[result.client] = self.round + pause

    def begin_round(
        self, candidates: Sequence[ClientCandidate]
    ) -> tuple[list[ClientCandidate], bool]:
        """Begin the next round.

        Args:
            candidates: clients that are available.

        Returns:
            The clients that may be chosen, and whether they are paused: if all are, those whose
            pauses end first may be chosen all the same.
        """
        self.round += 1
        eligible = [each for each in candidates if each.is_eligible]
        free = [each for each in eligible if self._ends.get(each.client, 0) < self.round]
        if free or not eligible:
            return free, False
        first = min(self._ends[each.client] for each in eligible)
        return [each for each in eligible if self._ends[each.client] == first], True
