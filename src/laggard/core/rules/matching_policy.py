"""Policy for how often ranks exchange models, given the duration over each link; pure.

After P. Zhou et al., "Communication-efficient Decentralized Machine Learning over Heterogeneous
Networks" (NetMax), ICDE 2021. The expected duration of a step is minimized while the second
eigenvalue of the expected mixing matrix stays within a bound. That eigenvalue tells how fast the
models become equal.

As in Z. Tang et al., "Communication-Efficient Decentralized Learning with Sparsification and
Adaptive Peer Selection" (SAPS-PSGD), ICDCS 2020, ranks are paired off in each step, and the two
ranks of a pair average their models. So every mixing matrix is symmetric and doubly stochastic,
and the mean of all models is preserved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Pairs = tuple[tuple[int, int], ...]

_TEMPERATURES = np.geomspace(1e-2, 1e2, 33)
"""Candidate temperatures, coldest first, in units of the difference between the slowest and the
fastest matching.
"""


@dataclass(frozen=True)
class MatchingPolicy:
    """Matchings of ranks and their probabilities in a step.

    Attributes:
        ranks: ranks that are paired off.
        matchings: pairs of positions in `ranks`; a position is in at most one pair of a matching.
        probabilities: probability of each matching, shape [M].
    """

    ranks: tuple[int, ...]
    matchings: tuple[Pairs, ...]
    probabilities: FloatArray

    def partner(self, rank: int, seed: int, step: int) -> int | None:
        """Return the rank that a rank exchanges models with in a step; None for no partner.

        All ranks with this policy draw the same matching.
        """
        if rank not in self.ranks or not self.matchings:
            return None
        # Seeded by the step, so that all ranks draw the same matching without a message.
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
    """Plan the policy for the given link durations.

    Matchings are drawn from a Gibbs distribution, p ~ exp(-time / temperature). Among all
    distributions with the same expected time, it deviates least from uniform. A colder
    distribution is faster but mixes less. The coldest of a series of temperatures that mixes
    enough is used. If none does, all matchings are equally probable.

    Args:
        ranks: present ranks.
        times_s: duration of an exchange between two ranks, symmetric, shape [ranks, ranks].
        mixing: least spectral gap of the expected mixing matrix, relative to the gap with uniform
            probabilities; in (0, 1].
        explore: fraction of the steps with uniform probabilities; in (0, 1].
    """
    matchings = build_matchings(times_s)
    count = len(matchings)
    uniform = np.full(count, 1 / max(count, 1))
    costs_s = np.array([sum(times_s[pair] for pair in pairs) for pairs in matchings])
    if not count or costs_s.max() == costs_s.min():
        return MatchingPolicy(ranks, matchings, uniform)
    enough = mixing * compute_spectral_gap(len(ranks), matchings, uniform)
    # Scaled to the range from 0 to 1, so that the same temperatures suit any links.
    above = (costs_s - costs_s.min()) / (costs_s.max() - costs_s.min())
    for temperature in _TEMPERATURES:
        preferred = np.exp(-above / temperature)
        probabilities = (1 - explore) * preferred / preferred.sum() + explore * uniform
        if compute_spectral_gap(len(ranks), matchings, probabilities) >= enough:
            return MatchingPolicy(ranks, matchings, probabilities / probabilities.sum())
    return MatchingPolicy(ranks, matchings, uniform)


def build_matchings(times_s: FloatArray) -> tuple[Pairs, ...]:
    """Build matchings that together contain every pair; fast pairs share a matching.

    A greedy coloring of the pairs begins with the fastest. Then ranks without a partner in a
    matching are paired, too, fastest pairs first, so each matching has as many pairs as possible.

    Args:
        times_s: duration of an exchange between two ranks, symmetric, shape [n, n].
    """
    size = len(times_s)
    pairs = sorted((float(times_s[i, j]), i, j) for i in range(size) for j in range(i + 1, size))
    colors: list[list[tuple[int, int]]] = [
        [] for _ in range(max(0, 2 * size - 3))
    ]  # a pair touches at most 2 (n - 2) others, so a greedy coloring needs no more colors
    # One bit per color that a rank is still free for: a color is a matching.
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
    """Compute 1 - (second eigenvalue of the expected mixing matrix).

    It is the least expected fraction of the models' variance that one step removes. A step's
    matrix W is a projection, W'W = W, so E[W] suffices (Boyd et al., "Randomized gossip
    algorithms", 2006).
    """
    expected = np.eye(size)
    for pairs, probability in zip(matchings, probabilities, strict=True):
        for i, j in pairs:
            expected[[i, j], [i, j]] -= probability / 2
            expected[[i, j], [j, i]] += probability / 2
    # `eigvalsh` sorts in ascending order; the largest eigenvalue is 1.
    return float(1 - np.linalg.eigvalsh(expected)[-2]) if size > 1 else 1.0


def estimate_exchange_times(rows: Mapping[int, FloatArray]) -> tuple[tuple[int, ...], FloatArray]:
    """Estimate the duration of an exchange between any two ranks from their measurements.

    Both ranks wait for the slower direction and for the slower gradient, which is computed while
    models travel. An unmeasured direction counts as fast as the opposite one. An unmeasured link
    counts as fast as the fastest link, so that it will be tried.

    Args:
        rows: measurements of each rank: seconds that a model takes from every rank to it, NaN if
            unknown, then seconds of its gradient.

    Returns:
        The ranks, ascending, and the seconds, symmetric, shape [ranks, ranks].
    """
    ranks = tuple(sorted(rows))
    links = np.array([[rows[target][source] for source in ranks] for target in ranks])
    np.fill_diagonal(links, np.nan)
    # `fmax` ignores NaN, so one measured direction is enough.
    links = np.fmax(links, links.T)
    known = links[~np.isnan(links)]
    links = np.where(np.isnan(links), known.min() if len(known) else 0.0, links)
    computing = np.nan_to_num(np.array([rows[rank][-1] for rank in ranks]))
    return ranks, np.maximum(links, np.maximum.outer(computing, computing))
