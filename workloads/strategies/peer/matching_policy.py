"""Policy for how often ranks exchange models, given the duration over each link; pure.

After P. Zhou et al., "Communication-efficient Decentralized Machine Learning over Heterogeneous
Networks" (NetMax), ICDE 2021: the expected time of a step is made small while the second eigenvalue
of the expected mixing matrix, which says how fast models become one, stays within a bound. As in Z.
Tang et al., "Communication-Efficient Decentralized Learning with Sparsification and Adaptive Peer
Selection" (SAPS-PSGD), ICDCS 2020, ranks are paired off in each step: the two of a pair average
their models, so every mixing matrix is symmetric and doubly stochastic, and the mean of all models
stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Pairs = tuple[tuple[int, int], ...]

_TEMPERATURES = np.geomspace(1e-2, 1e2, 33)
"""In units of the difference between the slowest matching and the fastest."""


@dataclass(frozen=True)
class MatchingPolicy:
    """Matchings of ranks, and how probable each is in a step.

    Attributes:
        ranks: that are paired off.
        matchings: pairs of places among `ranks`, of whom each is in one pair at most.
        probabilities: of the matchings, shape [M].
    """

    ranks: tuple[int, ...]
    matchings: tuple[Pairs, ...]
    probabilities: FloatArray

    def partner(self, rank: int, seed: int, step: int) -> int | None:
        """Whom a rank exchanges models with in a step; None where it is nobody. Everybody who has
        this policy draws the same matching.
        """
        if rank not in self.ranks or not self.matchings:
            return None
        drawn = np.random.default_rng((seed, step)).choice(
            len(self.matchings), p=self.probabilities
        )
        place = self.ranks.index(rank)
        others = [
            self.ranks[one + other - place]
            for one, other in self.matchings[drawn]
            if place in {one, other}
        ]
        return others[0] if others else None


def plan_matchings(
    ranks: tuple[int, ...], times_s: FloatArray, *, mixing: float, explore: float
) -> MatchingPolicy:
    """The policy for these links.

    Matchings are drawn as a Gibbs distribution has it, p ~ exp(-time / temperature), of all with
    the same expected time the one that prefers least. Colder is faster, and mixes less; the coldest
    of a ladder of temperatures that mixes enough is taken. At the end of the ladder all matchings
    are alike.

    Args:
        ranks: who is there.
        times_s: what an exchange between two takes, symmetric, shape [ranks, ranks].
        mixing: least spectral gap of the expected mixing matrix, as a part of the gap where all
            matchings are alike; in (0, 1].
        explore: part of the steps in which all matchings are alike; in (0, 1].
    """
    matchings = build_matchings(times_s)
    count = len(matchings)
    uniform = np.full(count, 1 / max(count, 1))
    costs_s = np.array([sum(times_s[pair] for pair in pairs) for pairs in matchings])
    if not count or costs_s.max() == costs_s.min():
        return MatchingPolicy(ranks, matchings, uniform)
    enough = mixing * compute_spectral_gap(len(ranks), matchings, uniform)
    above = (costs_s - costs_s.min()) / (costs_s.max() - costs_s.min())
    for temperature in _TEMPERATURES:
        preferred = np.exp(-above / temperature)
        probabilities = (1 - explore) * preferred / preferred.sum() + explore * uniform
        if compute_spectral_gap(len(ranks), matchings, probabilities) >= enough:
            return MatchingPolicy(ranks, matchings, probabilities / probabilities.sum())
    return MatchingPolicy(ranks, matchings, uniform)


def build_matchings(times_s: FloatArray) -> tuple[Pairs, ...]:
    """Matchings that have every pair in one of them at least, and as many pairs each as there can
    be; fast pairs are together.

    A greedy colouring of the pairs from the fastest on; then whoever is left over in a matching is
    paired off too, the fastest first.

    Args:
        times_s: what an exchange between two takes, symmetric, shape [n, n].
    """
    size = len(times_s)
    pairs = sorted((float(times_s[i, j]), i, j) for i in range(size) for j in range(i + 1, size))
    colors: list[list[tuple[int, int]]] = [
        [] for _ in range(max(0, 2 * size - 3))
    ]  # as many as a greedy colouring may need
    free = [(1 << len(colors)) - 1] * size
    for _, i, j in pairs:
        _assign_color(i, j, _find_lowest_bit(free[i] & free[j]), colors, free)
    used = (1 << sum(bool(color) for color in colors)) - 1
    for _, i, j in pairs:
        while common := free[i] & free[j] & used:
            _assign_color(i, j, _find_lowest_bit(common), colors, free)
    return tuple(tuple(color) for color in colors if color)


def _find_lowest_bit(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def _assign_color(
    i: int, j: int, number: int, colors: list[list[tuple[int, int]]], free: list[int]
) -> None:
    colors[number].append((i, j))
    free[i] &= ~(1 << number)
    free[j] &= ~(1 << number)


def compute_spectral_gap(
    size: int, matchings: tuple[Pairs, ...], probabilities: FloatArray
) -> float:
    """1 - the second eigenvalue of the expected mixing matrix: the part of the models' variance
    that a step is expected to take away, at least.

    A step's matrix W is a projection, W'W = W, so that E[W] is all that is needed (Boyd et al.,
    "Randomized gossip algorithms", 2006).
    """
    expected = np.eye(size)
    for pairs, probability in zip(matchings, probabilities, strict=True):
        for i, j in pairs:
            expected[[i, j], [i, j]] -= probability / 2
            expected[[i, j], [j, i]] += probability / 2
    return float(1 - np.linalg.eigvalsh(expected)[-2]) if size > 1 else 1.0


def estimate_exchange_times(rows: Mapping[int, FloatArray]) -> tuple[tuple[int, ...], FloatArray]:
    """What an exchange takes between any two, from what each has measured.

    Both wait for the slower way, and for the slower one's gradient, which is computed while models
    travel. A way that nobody knows yet is as fast as the other way; a link that nobody knows, as
    the fastest, so that it will be tried.

    Args:
        rows: of each rank: seconds that a model takes to it from every rank, NaN where it does not
            know, then seconds that its gradient takes.

    Returns:
        The ranks, ascending, and seconds, symmetric, shape [ranks, ranks].
    """
    ranks = tuple(sorted(rows))
    links = np.array([[rows[target][source] for source in ranks] for target in ranks])
    np.fill_diagonal(links, np.nan)
    links = np.fmax(links, links.T)
    known = links[~np.isnan(links)]
    links = np.where(np.isnan(links), known.min() if len(known) else 0.0, links)
    computing = np.nan_to_num(np.array([rows[rank][-1] for rank in ranks]))
    return ranks, np.maximum(links, np.maximum.outer(computing, computing))
