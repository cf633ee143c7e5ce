"""Shapley values (Shapley 1953): what each of several causes contributes when their effects
overlap.

Games here are given for many blocks at once: a value per coalition and block, summed over the
blocks, which the Shapley value allows because it is linear. Exact by enumeration up to ten players;
beyond, by random orders, each followed by its reverse (antithetic; Mitchell, Cooper, Frank and
Holmes, JMLR 2022), drawn anew for every block.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from laggard.analysis.tables.columns import BoolArray, FloatArray, IntArray

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
    """Shares of `game(nobody) - game(everybody)`, summed over the blocks.

    Args:
        game: from who is in each coalition, [C, B, players] (B may be 1: the same in every block),
            to costs, [C, B].
        players: number of players.
        blocks: number of blocks.
        rng: draws the orders when there are more than ten players.
        max_orders: that are drawn then, over all blocks.
        total_blocks: blocks of the whole run for which orders are drawn, if these are only some:
            all get as many, so that the error of the sum is least for the orders that there are.

    Returns:
        One share per player, [players]; they add up to the difference exactly.
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
    """What each player gains when all join in the orders drawn, [O, B, players]; summed over orders
    and blocks, [players].
    """
    orders, blocks, players = drawn.shape
    position = np.argsort(drawn, axis=2)
    members = position[None] < np.arange(players + 1)[:, None, None, None]
    cost = game(members.reshape(-1, blocks, players)).reshape(players + 1, orders, blocks)
    gained: FloatArray = np.bincount(
        np.moveaxis(drawn, 2, 0).ravel(), weights=-np.diff(cost, axis=0).ravel(), minlength=players
    ).astype(np.float64)
    return gained
