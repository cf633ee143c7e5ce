"""Which scheme is best for an objective, and why; pure.

An average that is left out saves its time and costs progress: between two averages ranks drift apart. How much is no measurement of a few steps, so it is
a parameter, `drift`: the part of a step's progress that each further step without an average costs (J. Wang, G. Joshi, "Adaptive communication strategies to
achieve the best error-runtime trade-off in local-update SGD", SysML 2019, derive the same form: a term in 1 / period and one in period - 1).
Averages within tiers keep most of the drift down.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from laggard.workloads.adaptive.scheme import Costs, Scheme, schemes

TIER_DRIFT = 0.5
"""Of the drift of ranks by themselves, what is left where tiers average in every step."""

WORTH_CHANGING = 0.1
"""A change is made where it is expected to gain more than this part."""

TRIAL_AVERAGES = 3

ObjectiveName = Literal["makespan", "cost", "fairness"]


@dataclass(frozen=True)
class Rules:
    """What a choice depends on besides measurements.

    Attributes:
        objective: what is to be small, or fair.
        drift: part of a step's progress lost per step without an average.
        longest: steps between two averages, at most.
        rent_per_s: price of all hosts for a second.
        price_per_byte: of a byte between tiers.
    """

    objective: ObjectiveName
    drift: float
    longest: int
    rent_per_s: float = 0.0
    price_per_byte: float = 0.0


@dataclass(frozen=True)
class Choice:
    """A scheme and the reason for it.

    Attributes:
        scheme: what to do from now on.
        gain: how many times less the objective is expected to cost than with what was done before; 1 where nothing changes.
        reason: a sentence.
    """

    scheme: Scheme
    gain: float
    reason: str


def steps_needed(scheme: Scheme, drift: float) -> float:
    """Steps for the progress of one with an average in each."""
    kept = TIER_DRIFT if scheme.name == "hierarchical" else 1.0
    return 1 + drift * kept * (scheme.period - 1)


def price(scheme: Scheme, costs: Costs, rules: Rules) -> float:
    """What the progress of one step costs: seconds, or money where that is the objective and anything has a price."""
    needed = steps_needed(scheme, rules.drift)
    priced = rules.rent_per_s > 0 or rules.price_per_byte > 0
    if rules.objective != "cost" or not priced:
        return needed * costs.step_s(scheme)
    return needed * (rules.rent_per_s * costs.step_s(scheme) + rules.price_per_byte * costs.step_bytes(scheme))


def choose(costs: Costs, rules: Rules, current: Scheme) -> Choice:
    """The cheapest scheme, unless the present one is nearly as cheap.

    Args:
        costs: what was measured.
        rules: the objective and what else counts.
        current: what is being done.
    """
    prices = {scheme: price(scheme, costs, rules) for scheme in schemes(costs, rules.longest)}
    best = min(prices, key=lambda scheme: prices[scheme])
    now = prices.get(current, float("inf"))
    if now <= prices[best] * (1 + WORTH_CHANGING):
        return Choice(current, 1.0, f"go on: {_because(costs, rules)}")
    return Choice(best, now / prices[best], f"{best.told()}: {_because(costs, rules)}")


def worth_trying(costs: Costs, scheme: Scheme, budget_s: float) -> bool:
    """Whether to try averages by way of the tiers' first ranks: averages matter, and trying them, two or three, is within the budget.

    What they cost is not known before; one over the ring is the guess.

    Args:
        costs: what was measured.
        scheme: what is best of what is known.
        budget_s: seconds that may be spent on it.
    """
    return (
        costs.step_s(scheme) > (1 + WORTH_CHANGING) * costs.work(scheme.period)
        and TRIAL_AVERAGES * costs.flat_s <= budget_s
    )


def _because(costs: Costs, rules: Rules) -> str:
    own_s = max(costs.work(), 1e-9)
    told = f"an average of all over the ring takes {costs.flat_s / own_s:.2g} times the slowest rank's own step"
    if costs.wide_s is not None:
        told += f", one by way of the tiers' first ranks {costs.wide_s / own_s:.2g} times"
    least = costs.work(rules.longest)
    if least < (1 - WORTH_CHANGING) * costs.work():
        told += f", and over {max(costs.work_s)} steps the slowest rank takes {least / own_s:.2g} times what the slowest of each step does"
    if rules.objective == "cost" and rules.price_per_byte > 0:
        traffic = rules.price_per_byte * costs.flat_bytes
        rent = max(rules.rent_per_s * own_s, 1e-30)
        told += f", and its bytes cost {traffic / rent:.2g} times the hosts' rent meanwhile"
    return told
