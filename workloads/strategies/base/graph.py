"""Who is whose neighbour, and with which weights models are averaged, so that their mean over all
ranks stays as it is; pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Graph = Literal["ring", "complete"]


def find_neighbors(graph: Graph, ranks: Sequence[int], rank: int) -> tuple[int, ...]:
    """The neighbours of a rank.

    Args:
        graph: a ring in the order of the ranks, or everybody is everybody's.
        ranks: all who are there, in ascending order.
        rank: one of them.
    """
    if graph == "complete":
        return tuple(other for other in ranks if other != rank)
    place = ranks.index(rank)
    adjacent = {ranks[place - 1], ranks[(place + 1) % len(ranks)]} - {rank}
    return tuple(sorted(adjacent))


def compute_mixing_weights(graph: Graph, ranks: Sequence[int], rank: int) -> dict[int, float]:
    """A rank's row of the mixing matrix W: of itself and its neighbours.

    Metropolis-Hastings: W_ij = 1 / (1 + max(degree i, degree j)) between neighbours, and what is
    left to 1 on the diagonal; symmetric, so that columns sum to 1 as rows do (Xiao, Boyd, "Fast
    linear iterations for distributed averaging", 2004).

    Args:
        graph: see `find_neighbors`.
        ranks: all who are there, in ascending order.
        rank: whose row.
    """
    adjacent = find_neighbors(graph, ranks, rank)
    degree = len(adjacent)
    weights = {
        other: 1 / (1 + max(degree, len(find_neighbors(graph, ranks, other)))) for other in adjacent
    }
    return {**weights, rank: 1 - sum(weights.values())}


def is_active(ranks: Sequence[int], rank: int) -> bool:
    """Whether a rank begins exchanges, or else answers them: every second one begins, in the order
    of those who are there.
    """
    return ranks.index(rank) % 2 == 0


def find_partners(graph: Graph, ranks: Sequence[int], rank: int) -> tuple[int, ...]:
    """The neighbours of a rank that have the other role (see `is_active`).

    These edges make a bipartite graph that is connected, whoever is there: it holds the path along
    `ranks`.

    Args:
        graph: see `find_neighbors`.
        ranks: all who are there, in ascending order.
        rank: one of them.
    """
    role = is_active(ranks, rank)
    return tuple(
        other for other in find_neighbors(graph, ranks, rank) if is_active(ranks, other) is not role
    )
