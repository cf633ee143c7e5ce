"""Oort's selection: clients with high losses that are not too slow.

F. Lai, X. Zhu, H. Madhyastha, M. Chowdhury, "Oort: efficient federated learning via guided
participant selection", OSDI 2021, algorithm 1. Where the paper leaves a detail open, it is the one
of the authors' code (github.com/SymbioticLab/Oort).
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from laggard.core.selection.failure_pauses import FailurePauses
from laggard.core.selection.selector import (
    ClientCandidate,
    ClientChoice,
    ClientResult,
    ClientSelection,
)
from laggard.core.selection.weighted_draw import draw_weighted

LEAST_RANGE = 1e-4
MOST_PER_PLACE = 10
"""Candidates above the cut-off are drawn from, but no more than so many for each place."""


@dataclass(frozen=True)
class OortParameters:
    """Parameters of Oort's selection.

    Attributes:
        clip: quantile of the utilities above which a utility counts no more.
        penalty: exponent by which clients are penalized that are slower than preferred.
        cut_off: part of the utility at the last place above which clients may be drawn.
        exploration: part of the places for clients that never took part, before the first round.
        exploration_decay: factor of that part in each round.
        least_exploration: part that it does not fall below.
        percentile: percentile of the clients' durations that is preferred at first.
        pacer_rounds: rounds between two looks at the utilities.
        pacer_change: percentiles by which the preference changes.
    """

    clip: float = 0.98
    penalty: float = 2.0
    cut_off: float = 0.7
    exploration: float = 0.9
    exploration_decay: float = 0.95
    least_exploration: float = 0.2
    percentile: float = 30.0
    pacer_rounds: int = 20
    pacer_change: float = 5.0


@dataclass(frozen=True)
class KnownClient:
    """Client that took part, with what it reported last.

    Attributes:
        utility: statistical utility in its last round.
        last_round: its last round, from 1.
        duration_s: seconds that this round took for it.
    """

    utility: float
    last_round: int
    duration_s: float


def score_clients(
    clients: Sequence[KnownClient],
    current_round: int,
    preferred_s: float,
    parameters: OortParameters,
) -> list[float]:
    """Return the score of each client.

    With utility u, the score is (min(u, clip) - 0.999 min) / range + sqrt(0.1 ln(now) / last
    round), and times (T/t)^penalty if the client takes t > T seconds. `min` and `clip` are the
    least utility and the quantile of all; `range` is the largest one less 0.999 min.

    Args:
        clients: clients that took part.
        current_round: number of the round, from 1.
        preferred_s: seconds T that a round should take; may be infinite.
        parameters: parameters of the selection.
    """
    if not clients:
        return []
    utilities = sorted(client.utility for client in clients)
    least = 0.999 * utilities[0]
    span = max(utilities[-1] - least, LEAST_RANGE)
    clip = utilities[min(int(len(utilities) * parameters.clip), len(utilities) - 1)]
    scores = []
    for client in clients:
        waited = math.sqrt(0.1 * math.log(current_round) / client.last_round)
        score = (min(client.utility, clip) - least) / span + waited
        scores.append(score * _penalize(client.duration_s, preferred_s, parameters.penalty))
    return scores


def _penalize(duration_s: float, preferred_s: float, penalty: float) -> float:
    return (preferred_s / duration_s) ** penalty if duration_s > preferred_s else 1.0


@dataclass
class Pacer:
    """Preferred duration of rounds: a percentile of the clients' durations that moves.

    When the utilities of chosen clients stay the same, there is more to learn from slower clients,
    so the percentile rises. When they change strongly, it falls.
    """

    parameters: OortParameters
    percentile: float = field(init=False)
    _utilities: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.percentile = self.parameters.percentile

    def end_round(self, utility: float) -> None:
        """Take note of the summed utility of the clients that were chosen for their scores."""
        self._utilities.append(utility)
        rounds, change = self.parameters.pacer_rounds, self.parameters.pacer_change
        if len(self._utilities) < 2 * rounds or len(self._utilities) % rounds:
            return
        before, now = sum(self._utilities[-2 * rounds : -rounds]), sum(self._utilities[-rounds:])
        if abs(now - before) <= 0.1 * before:
            self.percentile = min(self.percentile + change, 100.0)
        elif abs(now - before) >= 5 * before:
            self.percentile = max(self.percentile - change, change)

    def choose_preferred_s(self, durations_s: Sequence[float]) -> float:
        """Return the seconds that a round should take, given those of all clients."""
        if self.percentile >= 100.0 or not durations_s:
            return math.inf
        ordered = sorted(durations_s)
        return ordered[min(int(len(ordered) * self.percentile / 100), len(ordered) - 1)]


@dataclass
class OortSelector:
    """Oort's selection with exploration.

    Attributes:
        seed: seed of all that is drawn.
        parameters: parameters of the selection.
    """

    seed: int
    parameters: OortParameters = field(default_factory=OortParameters)
    _known: dict[int, KnownClient] = field(default_factory=dict)
    _pauses: FailurePauses = field(default_factory=FailurePauses)
    _exploited: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)  # noqa: S311 - a simulation, not a secret
        self._pacer = Pacer(self.parameters)
        self._exploration = self.parameters.exploration

    def report(self, result: ClientResult) -> None:
        """Take note of a result (see `ClientSelector`)."""
        self._pauses.report(result)
        if result.is_failure:
            return
        before = self._known.get(result.client)
        utility = before.utility if result.utility is None and before else result.utility or 0.0
        self._known[result.client] = KnownClient(utility, self._pauses.round, result.duration_s)

    def select(self, candidates: Sequence[ClientCandidate], count: int) -> ClientSelection:
        """Select clients (see `ClientSelector`)."""
        if self._pauses.round:
            self._pacer.end_round(
                sum(self._known[each].utility for each in self._exploited if each in self._known)
            )
        free, _ = self._pauses.begin_round(candidates)
        count_chosen = min(count, len(free))
        preferred_s = self._pacer.choose_preferred_s([self._expect_s(each) for each in free])
        known = [each for each in free if each.client in self._known]
        new = [each for each in free if each.client not in self._known]
        self._exploration = max(
            self._exploration * self.parameters.exploration_decay, self.parameters.least_exploration
        )
        # Places that one kind cannot fill go to the other.
        exploited = int(count_chosen * (1.0 - self._exploration)) if new else count_chosen
        exploited = min(max(exploited, count_chosen - len(new)), len(known))
        choices = self._exploit(known, exploited, preferred_s)
        self._exploited = frozenset(choice.client for choice in choices)
        choices += self._explore(new, count_chosen - len(choices), preferred_s)
        return ClientSelection(tuple(choices), count - len(choices))

    def _expect_s(self, candidate: ClientCandidate) -> float:
        known = self._known.get(candidate.client)
        return candidate.predicted_s if known is None else known.duration_s

    def _exploit(
        self, candidates: Sequence[ClientCandidate], count: int, preferred_s: float
    ) -> list[ClientChoice]:
        if not count:
            return []
        known: Mapping[int, KnownClient] = self._known
        scores = score_clients(
            [known[each.client] for each in candidates],
            self._pauses.round,
            preferred_s,
            self.parameters,
        )
        ranked = sorted(zip(scores, candidates, strict=True), key=lambda pair: -pair[0])
        cut_off = self.parameters.cut_off * ranked[min(count, len(ranked) - 1)][0]
        drawn_from = [
            pair
            for place, pair in enumerate(ranked)
            if place < count or (pair[0] >= cut_off and place < MOST_PER_PLACE * count)
        ]
        drawn = draw_weighted([score for score, _ in drawn_from], count, self._rng)
        return [
            ClientChoice(drawn_from[each][1].client, f"score {drawn_from[each][0]:.3g}")
            for each in drawn
        ]

    def _explore(
        self, candidates: Sequence[ClientCandidate], count: int, preferred_s: float
    ) -> list[ClientChoice]:
        """Draw clients that never took part, those with many samples and short rounds sooner."""
        weights = [
            each.samples * _penalize(each.predicted_s, preferred_s, self.parameters.penalty)
            for each in candidates
        ]
        drawn = draw_weighted(weights, count, self._rng)
        return [ClientChoice(candidates[each].client, "never took part") for each in drawn]
