"""How often ranks should average their models for an objective, in which manner, and why; pure.

An average that is left out saves what it takes and costs progress: between two averages ranks drift
apart. How much is no measurement of a few steps, so it is a parameter, `drift`: the part of a
step's progress that each further step without an average costs (J. Wang, G. Joshi, "Adaptive
communication strategies to achieve the best error-runtime trade-off in local-update SGD", SysML
2019, derive the same form: a term in 1 / period and one in period - 1).

Where nobody waits for averages they still take of every rank's processor and of everybody's links:
`effort` says how much of a second's training a second of averaging is taken to be worth. Where
computers are unequal most of that second is the slowest's, which learns least: it counts as what it
is of the time of those who learn. Where all wait for averages, and for the slowest, their time is
training's. Where an average of all takes many steps models have drifted apart by the time it is
over, and one slow rank holds it up for all: there two by two is better (AD-PSGD).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import harmonic_mean, median
from typing import Literal

from laggard.workloads.strategies.background.async_averager import AveragingMode, AveragingPolicy

CANDIDATE_PERIODS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Steps between two averages that are considered."""

MIN_RELATIVE_GAIN = 0.1
"""A change is made where it is expected to gain more than this part."""

PAIRWISE_HYSTERESIS = 0.5
"""Part of the steps from which on two by two is better for which it stays so."""

MAX_TIMING_FRACTION = 0.1
"""Part of the time that averages of all may be under way where models go two by two: they only tell
what they take, and are in the way."""

ROUND_TRIPS_PER_AVERAGE = 4.0
"""How many times as long as a model of two is on the slowest way, there and back, an average of all
is expected to take, whose parts go every way at once: 2 to 6 times were measured on the columns of
experiments/strategies."""

ObjectiveName = Literal["makespan", "cost", "fairness"]


@dataclass(frozen=True)
class ChoiceCriteria:
    """Criteria of a choice, besides measurements.

    Attributes:
        objective: what is to be small, or fair.
        drift: part of a step's progress lost per step without an average.
        effort: seconds of training that a second of averaging is worth, where nobody waits for it.
        max_period: steps between two averages, at most, where models do not go two by two.
        rent_per_s: price of all hosts for a second.
        price_per_byte: of a byte between tiers.
        pairs_from: steps that an average takes from which on ranks average two by two.
    """

    objective: ObjectiveName
    drift: float
    effort: float
    max_period: int
    rent_per_s: float = 0.0
    price_per_byte: float = 0.0
    pairs_from: float = float("inf")

    @property
    def priced(self) -> bool:
        """Whether money is the objective, and anything has a price."""
        return self.objective == "cost" and (self.rent_per_s > 0 or self.price_per_byte > 0)


@dataclass(frozen=True)
class AveragingCosts:
    """Measured costs of training and averaging, in seconds.

    Attributes:
        steps_s: what a step takes, of each rank that has said so.
        average_s: what an average of all takes.
        average_bytes: that it sends between tiers.
    """

    steps_s: Sequence[float]
    average_s: float
    average_bytes: float = 0.0

    @property
    def step_s(self) -> float:
        """Seconds per step of the median rank."""
        return median(self.steps_s)

    @property
    def slowest_s(self) -> float:
        """Seconds per step of the slowest rank."""
        return max(self.steps_s)

    @property
    def average_work_s(self) -> float:
        """What an average takes of a rank's time, in the mean over what all learn: a quick rank has
        done its part as much sooner as its steps are quicker than the slowest's.
        """
        return self.average_s * harmonic_mean(self.steps_s) / self.slowest_s

    @property
    def average_steps(self) -> float:
        """Steps of the middle rank that an average takes."""
        return self.average_s / self.step_s


@dataclass(frozen=True)
class PolicyChoice:
    """Terms and the reason for them.

    Attributes:
        policy: what to do from now on.
        gain: how many times less the objective is expected to cost than with what was done before;
            1 where nothing changes.
        reason: a sentence.
    """

    policy: AveragingPolicy
    gain: float
    reason: str


def choose_initial_policy(objective: ObjectiveName) -> AveragingPolicy:
    """Until an average has been timed; where time is the objective, two by two meanwhile, since
    that may take long.
    """
    return AveragingPolicy(
        1,
        {
            "makespan": AveragingMode.PAIRWISE,
            "cost": AveragingMode.NONBLOCKING,
            "fairness": AveragingMode.BLOCKING,
        }[objective],
    )


@dataclass(frozen=True)
class EarlyMeasurements:
    """Measurements from before the first average of all.

    Attributes:
        steps_s: what a step takes, of each rank that has said so.
        round_trips_s: how long models of an exchange of two were on their way, there and back, of
            each rank that began one and has said so.
        expected_reports: ranks that begin exchanges.
        elapsed_s: what the leader's steps have taken.
    """

    steps_s: Sequence[float]
    round_trips_s: Sequence[float]
    expected_reports: int
    elapsed_s: float


@dataclass(frozen=True)
class FirstAverageDecision:
    """Decision on whether the first average of all begins now.

    Attributes:
        begins: whether it is; if not, models go on two by two.
        policy: those it is begun on.
        reason: why models go two by two; empty where that is not known.
    """

    begins: bool
    policy: AveragingPolicy
    reason: str = ""


def decide_first_average(
    seen: EarlyMeasurements, criteria: ChoiceCriteria, first: AveragingPolicy
) -> FirstAverageDecision:
    """Decide whether to time an average of all.

    It takes no less than the models of two are on the slowest way, which it goes too, there and
    back, and some `ROUND_TRIPS_PER_AVERAGE` times that. To find that out by an average itself would
    keep slow links busy with it for many steps. One that is made all the same, after many steps,
    tells what it takes, and moves no model (see `AveragingPolicy.measures_only`).

    Args:
        seen: what is known.
        criteria: the objective and what else counts.
        first: terms as long as nothing speaks against them.
    """
    step_s = median(seen.steps_s) if seen.steps_s else float("inf")
    ratio, elapsed_steps = max(seen.round_trips_s, default=0.0) / step_s, seen.elapsed_s / step_s
    if ratio < criteria.pairs_from and len(seen.round_trips_s) < seen.expected_reports:
        if elapsed_steps < criteria.max_period:
            return FirstAverageDecision(begins=False, policy=first)
        ratio = float(
            criteria.max_period
        )  # who has said nothing for so long has a way, or a computer, as slow as that
    if ratio < criteria.pairs_from:
        return FirstAverageDecision(begins=True, policy=first)
    pairs = _build_pairwise_policy(ROUND_TRIPS_PER_AVERAGE * ratio, criteria)
    reason = (
        f"{_describe_policy(pairs)}: models of two are on their way to each other {ratio:.2g} times"
        " a step, and those of an average of all no less"
    )
    return FirstAverageDecision(elapsed_steps >= pairs.steps, pairs, reason)


def estimate_cost(
    policy: AveragingPolicy, costs: AveragingCosts, criteria: ChoiceCriteria
) -> float:
    """What the progress of one step of each rank costs where all are averaged: seconds, or money
    where that is the objective and anything has a price.
    """
    if policy.waits:
        return (1 + criteria.drift * (policy.steps - 1)) * (
            costs.slowest_s + costs.average_s / policy.steps
        )
    between = max(policy.steps, costs.average_steps)
    needed = 1 + criteria.drift * (between - 1)
    worth_s = costs.step_s + criteria.effort * costs.average_work_s / between
    if not criteria.priced:
        return needed * worth_s
    return needed * (
        criteria.rent_per_s * worth_s + criteria.price_per_byte * costs.average_bytes / between
    )


def choose_policy(
    costs: AveragingCosts, criteria: ChoiceCriteria, current: AveragingPolicy
) -> PolicyChoice:
    """The cheapest terms, unless the present ones are nearly as cheap.

    Where fairness is the objective, all wait for each other, so that all learn alike, and the
    quickest of such terms are the best. Where time is, ranks may average two by two.

    Args:
        costs: what was measured.
        criteria: the objective and what else counts.
        current: what is being done.
    """
    if _is_pairwise_better(costs, criteria, current):
        pairs = _build_pairwise_policy(costs.average_steps, criteria)
        if (
            _is_pairwise_confirmed(current)
            and current.steps / 2 <= pairs.steps <= current.steps * 2
        ):
            return PolicyChoice(current, 1.0, f"go on: {_describe_reason(costs, criteria)}")
        return PolicyChoice(
            pairs, 1.0, f"{_describe_policy(pairs)}: {_describe_reason(costs, criteria)}"
        )
    mode = AveragingMode.BLOCKING if criteria.objective == "fairness" else AveragingMode.NONBLOCKING
    candidates = [
        AveragingPolicy(period, mode)
        for period in CANDIDATE_PERIODS
        if period <= criteria.max_period
    ]
    prices = {policy: estimate_cost(policy, costs, criteria) for policy in candidates}
    best = min(candidates, key=lambda policy: prices[policy])
    now = prices.get(current, float("inf"))
    if now <= prices[best] * (1 + MIN_RELATIVE_GAIN):
        return PolicyChoice(current, 1.0, f"go on: {_describe_reason(costs, criteria)}")
    return PolicyChoice(
        best,
        max(now / prices[best], 1.0),
        f"{_describe_policy(best)}: {_describe_reason(costs, criteria)}",
    )


def _is_pairwise_better(
    costs: AveragingCosts, criteria: ChoiceCriteria, current: AveragingPolicy
) -> bool:
    if criteria.objective == "fairness" or criteria.priced:
        return False
    stays = PAIRWISE_HYSTERESIS if _is_pairwise_confirmed(current) else 1.0
    return costs.average_steps >= criteria.pairs_from * stays


def _is_pairwise_confirmed(current: AveragingPolicy) -> bool:
    """Whether models go two by two because of what was timed (see `choose_initial_policy`)."""
    return current.measures_only


def _build_pairwise_policy(average_steps: float, criteria: ChoiceCriteria) -> AveragingPolicy:
    return AveragingPolicy(
        max(criteria.max_period, ceil(average_steps / MAX_TIMING_FRACTION)), AveragingMode.PAIRWISE
    )


def _describe_policy(policy: AveragingPolicy) -> str:
    frequency = "in every step" if policy.steps == 1 else f"every {policy.steps} steps"
    match policy.mode:
        case AveragingMode.BLOCKING:
            return f"average all models {frequency}, all waiting for all, so that all learn alike"
        case AveragingMode.PAIRWISE:
            return (
                f"average models two by two, nobody waiting, and time an average of all {frequency}"
            )
    return f"average all models {frequency} or when one is over, nobody waiting"


def _describe_reason(costs: AveragingCosts, criteria: ChoiceCriteria) -> str:
    reason = f"an average of all takes {costs.average_steps:.2g} times a step"
    if costs.slowest_s > (1 + MIN_RELATIVE_GAIN) * costs.step_s:
        reason += (
            f", of which the slowest worker's takes {costs.slowest_s / costs.step_s:.2g} times the"
            " middle one's"
        )
    if criteria.objective == "cost" and criteria.price_per_byte > 0:
        rent = max(criteria.rent_per_s * costs.step_s, 1e-30)
        reason += (
            f", and its bytes cost {criteria.price_per_byte * costs.average_bytes / rent:.2g} times"
            " the hosts' rent for a step"
        )
    return reason


def count_bytes_between_tiers(tiers: Sequence[str], model_bytes: int) -> float:
    """That an average of all sends between tiers, in the mean over who averages for the others.

    Whoever is in another tier than a part's owner sends the part there and gets the mean back.

    Args:
        tiers: the tier of every rank.
        model_bytes: of what is averaged.
    """
    ranks = len(tiers)
    alike = sum(size * size for size in Counter(tiers).values()) / ranks
    return 2 * (ranks - alike) * model_bytes
