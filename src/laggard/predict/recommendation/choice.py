"""Choice of the cheapest candidate within a budget, and of the most useful measurement.

A choice has a loss in every possible world. A candidate that is within the budget loses the part by
which it costs more than the cheapest such candidate, at most 1. One that is not within the budget
loses 1. To say that nothing is within the budget loses 1 if something is. The choice with the
least expected loss is taken, of candidates that are within the budget with even odds at least.
Many unlikely candidates are not an answer, though one of them may well be within it.

The most useful measurement lowers the expected loss of the choice after it most (knowledge
gradient; Frazier, Powell and Dayanik, SIAM J. Control Optim. 47, 2008).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from laggard.core.cost_model.arrays import FloatArray
from laggard.predict.recommendation.beliefs import Beliefs

_Flags = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]

LEAST_USE = 0.0005
"""Expected loss that a measurement must save to be worth it."""

LEAST_PROBABILITY = 0.5
"""Probability with which a candidate that is chosen is within the budget at least."""

_CONTENDERS = 48
_TRIED = 12
_OUTCOMES = 16
_WORLDS = 512


@dataclass(frozen=True)
class Budget:
    """Limits of a training.

    Attributes:
        within_s: longest time.
        cost_below: largest cost.

    Examples:
        >>> Budget(within_s=6 * 3600.0).cost_below
        inf
    """

    within_s: float
    cost_below: float = math.inf


@dataclass(frozen=True)
class Choice:
    """Choice among candidates.

    Attributes:
        candidate: number of the chosen candidate; None if nothing is within the budget.
        loss: expected loss.
        in_budget: probability that each candidate is within the budget, [N].
        cheapest: probability that each candidate is the cheapest within the budget, [N].
    """

    candidate: int | None
    loss: float
    in_budget: FloatArray
    cheapest: FloatArray


def choose(beliefs: Beliefs, price_per_s: FloatArray, budget: Budget) -> Choice:
    """Return the choice with the least expected loss.

    Args:
        beliefs: beliefs about the times of N candidates.
        price_per_s: price of a second of each candidate, [N].
        budget: limits of time and cost.
    """
    costs, within = _judge(beliefs.worlds, price_per_s, budget)
    losses = _compute_losses(costs, within)
    likely = np.append(within.mean(axis=0) >= LEAST_PROBABILITY, True)
    best = int(np.where(likely, losses, np.inf).argmin())
    feasible = within.any(axis=1)
    cheapest = np.bincount(
        np.where(within, costs, np.inf).argmin(axis=1)[feasible], minlength=within.shape[1]
    )
    return Choice(
        candidate=best if best < within.shape[1] else None,
        loss=float(losses[best]),
        in_budget=within.mean(axis=0),
        cheapest=cheapest / len(within),
    )


def find_useful_measurement(
    beliefs: Beliefs, price_per_s: FloatArray, budget: Budget, measured: Iterable[int] = ()
) -> int | None:
    """Return the candidate to measure next; None if no measurement would change the choice.

    Args:
        beliefs: beliefs about the times of N candidates.
        price_per_s: price of a second of each candidate, [N].
        budget: limits of time and cost.
        measured: candidates that were measured already.
    """
    now = choose(beliefs, price_per_s, budget)
    contenders = _list_contenders(now, beliefs)
    few, prices = beliefs.select(_WORLDS, contenders), price_per_s[contenders]
    loss_now = _least_loss(few, prices, budget)
    known, losses = {*measured}, {}
    for place, candidate in enumerate(contenders[:_TRIED]):
        if candidate in known:
            continue
        # Any of the worlds may be the true one.
        outcomes = np.exp(few.worlds[:: len(few.usual) // _OUTCOMES, place])
        losses[candidate] = float(
            np.mean(
                [
                    _least_loss(few.with_measurements({place: seconds}), prices, budget)
                    for seconds in outcomes.tolist()
                ]
            )
        )
    if not losses:
        return None
    best = min(losses, key=lambda each: losses[each])
    return best if loss_now - losses[best] >= LEAST_USE else None


def _list_contenders(choice: Choice, beliefs: Beliefs) -> list[int]:
    """Return candidates that may be the cheapest, likely ones first, then the fastest ones."""
    order = np.lexsort((beliefs.worlds.mean(axis=0), -choice.cheapest))
    contenders = [int(each) for each in order[:_CONTENDERS]]
    if choice.candidate is not None:
        contenders = [choice.candidate, *(each for each in contenders if each != choice.candidate)]
    return contenders


def _judge(
    worlds: FloatArray, price_per_s: FloatArray, budget: Budget
) -> tuple[FloatArray, _Flags]:
    seconds = np.exp(worlds)
    costs = seconds * price_per_s
    return costs, (seconds <= budget.within_s) & (costs <= budget.cost_below)


def _compute_losses(costs: FloatArray, within: _Flags) -> FloatArray:
    """Return the expected loss of each candidate, and last that of choosing none, [N + 1]."""
    least = np.where(within, costs, np.inf).min(axis=1, keepdims=True)
    regret = np.where(within, np.minimum(costs / np.where(within, least, 1.0) - 1.0, 1.0), 1.0)
    none = np.isfinite(least[:, 0]).mean()
    return np.append(regret.mean(axis=0), none)


def _least_loss(beliefs: Beliefs, price_per_s: FloatArray, budget: Budget) -> float:
    return float(_compute_losses(*_judge(beliefs.worlds, price_per_s, budget)).min())
