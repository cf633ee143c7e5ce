"""Shapley values (Shapley 1953): the contribution of each of several causes whose effects overlap.

A game is given for many blocks at once, as one value per coalition and block. The values are
summed over the blocks, which is allowed because the Shapley value is linear. Up to ten players,
all coalitions are enumerated and the result is exact. With more players, random orders are drawn
anew for every block, each followed by its reverse (antithetic sampling; Mitchell, Cooper, Frank
and Holmes, JMLR 2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from laggard.core.cost_model.arrays import BoolArray, FloatArray, IntArray

MAX_EXACT_PLAYERS = 10
_TOTAL_ORDERS = 8192
_MIN_ORDERS = 16
_MAX_CELLS = 1 << MAX_EXACT_PLAYERS

Game = Callable[[BoolArray], FloatArray]


def compute_shapley(
    game: Game,
    players: int,
    blocks: int,
    rng: np.random.Generator,
    max_orders: int = _TOTAL_ORDERS,
    total_blocks: int | None = None,
) -> FloatArray:
    """Return each player's share of `game(no player) - game(all players)`, summed over the blocks.

    Args:
        game: function that maps the membership of each coalition, [C, B, players], to costs, [C,
            B]. B may be 1 if the membership is the same in every block.
        players: number of players.
        blocks: number of blocks.
        rng: source of the random orders when there are more than ten players.
        max_orders: number of random orders to draw over all blocks.
        total_blocks: number of blocks of the whole run for which orders are drawn, if `blocks` is
            only a part of them. All blocks get the same number of orders, which minimizes the
            error of the sum.

    Returns:
        One share per player, [players]. The shares add up exactly to the difference.
    """
    if players <= MAX_EXACT_PLAYERS:
        return _enumerate_shares(game, players)
    return _sample_shares(
        game,
        players,
        blocks,
        rng,
        max(_MIN_ORDERS, max_orders // max(total_blocks or blocks, 1)) // 2,
    )


def _enumerate_shares(game: Game, players: int) -> FloatArray:
    # Coalition number m contains player p if bit p of m is set.
    masks = np.arange(1 << players)
    members = (masks[:, None] >> np.arange(players)[None, :] & 1).astype(np.bool_)
    cost = game(members[:, None, :]).sum(axis=1)
    size = members.sum(axis=1)
    weight = np.array([1.0 / (players * math.comb(players - 1, s)) for s in range(players)])
    shares = np.zeros(players)
    for player in range(players):
        without = masks[~members[:, player]]
        shares[player] = np.sum(
            weight[size[without]] * (cost[without] - cost[without | (1 << player)])
        )
    return shares


def _sample_shares(
    game: Game, players: int, blocks: int, rng: np.random.Generator, pairs: int
) -> FloatArray:
    at_once = max(1, _MAX_CELLS // (blocks * (players + 1)))
    shares = np.zeros(players)
    for begin in range(0, pairs, at_once):
        order = np.argsort(rng.random((min(at_once, pairs - begin), blocks, players)), axis=2)
        for drawn in (order, order[:, :, ::-1]):
            shares += _sum_gains(game, drawn)
    return shares / (2 * pairs)


def _sum_gains(game: Game, drawn: IntArray) -> FloatArray:
    """Return each player's gains when players join in the drawn orders, [players].

    The orders have the shape [O, B, players]; the gains are summed over orders and blocks.
    """
    orders, blocks, players = drawn.shape
    # The argsort of a permutation is its inverse: the position of each player in the order.
    position = np.argsort(drawn, axis=2)
    members = position[None] < np.arange(players + 1)[:, None, None, None]
    cost = game(members.reshape(-1, blocks, players)).reshape(players + 1, orders, blocks)
    gained: FloatArray = np.bincount(
        np.moveaxis(drawn, 2, 0).ravel(), weights=-np.diff(cost, axis=0).ravel(), minlength=players
    ).astype(np.float64)
    return gained
