"""Graphs of neighbors, and mixing weights that preserve the mean of all models; pure.

Mixing weights say how a rank averages its own model with those of its neighbors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Graph = Literal["ring", "complete"]


def find_neighbors(graph: Graph, ranks: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return the neighbors of a rank, in ascending order.

    Args:
        graph: `ring` in the order of the ranks, or `complete` (all ranks are neighbors).
        ranks: all present ranks, in ascending order.
        rank: one of them.
    """
    if graph == "complete":
        return tuple(other for other in ranks if other != rank)
    place = ranks.index(rank)
    # Sets remove duplicates: with two ranks both neighbors are the same, with one it is `rank`.
    adjacent = {ranks[place - 1], ranks[(place + 1) % len(ranks)]} - {rank}
    return tuple(sorted(adjacent))


def compute_mixing_weights(graph: Graph, ranks: Sequence[int], rank: int) -> dict[int, float]:
    """Compute a rank's row of the mixing matrix W: weights of itself and its neighbors.

    Metropolis-Hastings weights: W_ij = 1 / (1 + max(degree i, degree j)) between neighbors, and
    the diagonal completes each row to 1. W is symmetric, so its columns sum to 1 as its rows do
    (Xiao, Boyd, "Fast linear iterations for distributed averaging", 2004).

    Args:
        graph: see `find_neighbors`.
        ranks: all present ranks, in ascending order.
        rank: rank whose row is computed.
    """
    adjacent = find_neighbors(graph, ranks, rank)
    # In both graphs all ranks have equally many neighbors.
    weights = dict.fromkeys(adjacent, 1 / (1 + len(adjacent)))
    return {**weights, rank: 1 - sum(weights.values())}


def is_active(ranks: Sequence[int], rank: int) -> bool:
    """Return whether a rank begins exchanges (active) instead of answering them (passive).

    Every second present rank, in ascending order, is active.
    """
    return ranks.index(rank) % 2 == 0


def find_partners(graph: Graph, ranks: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return the neighbors of a rank that have the other role (see `is_active`).

    These edges form a bipartite graph. It is always connected, because it contains the path along
    `ranks`.

    Args:
        graph: see `find_neighbors`.
        ranks: all present ranks, in ascending order.
        rank: one of them.
    """
    role = is_active(ranks, rank)
    return tuple(
        other for other in find_neighbors(graph, ranks, rank) if is_active(ranks, other) is not role
    )
