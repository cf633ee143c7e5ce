"""Choice of the averaging mode and period for an objective, with the reason; pure.

To omit an average saves its duration and costs progress, because ranks drift apart between
averages. A few steps cannot measure that cost, so it is the parameter `drift`: the fraction of a
step's progress that each further step without an average costs. J. Wang, G. Joshi, "Adaptive
communication strategies to achieve the best error-runtime trade-off in local-update SGD", SysML
2019, derive the same form: one term in 1 / period and one in period - 1.

Even an average that no rank waits for uses every rank's processor and links: `effort` is the
training time, in seconds, that one second of averaging costs. If computers are unequal, most of
that second is time of the slowest rank, which learns least. So it counts by its part of the time
of the ranks that learn. In the blocking mode, all ranks wait for averages and for the slowest
rank, so that time is training time.

If an average of all models takes many steps, the models have drifted apart by its end, and one
slow rank delays it for all. Averages in pairs are then better (AD-PSGD).
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
"""Periods to choose from, in steps between two averages."""

MIN_RELATIVE_GAIN = 0.1
"""Least relative gain for which the policy is changed."""

PAIRWISE_HYSTERESIS = 0.5
"""Factor on `pairs_from` below which the pairwise mode ends, so that it does not change often."""

MAX_TIMING_FRACTION = 0.1
"""Largest fraction of the time that averages of all models may run in the pairwise mode. There they
only measure their duration, and slow down the exchanges.
"""

ROUND_TRIPS_PER_AVERAGE = 4.0
"""Expected duration of an average of all models, in round trips of one model over the slowest link.
Its parts use all links at once: 2 to 6 round trips were measured on the columns of
experiments/strategies.
"""

ObjectiveName = Literal["makespan", "cost", "fairness"]


@dataclass(frozen=True)
class ChoiceCriteria:
    """Criteria of a choice, besides measurements.

    Attributes:
        objective: quantity to minimize, or fairness.
        drift: fraction of a step's progress lost per step without an average.
        effort: seconds of training that one second of averaging costs when no rank waits for it.
        max_period: largest number of steps between two averages, outside the pairwise mode.
        rent_per_s: price of all hosts for a second.
        price_per_byte: price of a byte between tiers.
        pairs_from: duration of an average, in steps, from which on ranks average in pairs.
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
        """True if the objective is the cost, and hosts or bytes have a price."""
        return self.objective == "cost" and (self.rent_per_s > 0 or self.price_per_byte > 0)


@dataclass(frozen=True)
class AveragingCosts:
    """Measured costs of training and averaging, in seconds.

    Attributes:
        steps_s: duration of a step of each rank that has reported one.
        average_s: duration of an average of all models.
        average_bytes: bytes between tiers per average of all models.
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
        """Seconds of a rank's time per average, as a mean weighted by progress.

        A fast rank finishes its part sooner, in the ratio of its step duration to the slowest
        rank's.
        """
        return self.average_s * harmonic_mean(self.steps_s) / self.slowest_s

    @property
    def average_steps(self) -> float:
        """Duration of an average in steps of the median rank."""
        return self.average_s / self.step_s


@dataclass(frozen=True)
class PolicyChoice:
    """Chosen policy and the reason for it.

    Attributes:
        policy: policy from now on.
        gain: expected cost of the previous policy divided by that of the new one; 1 without a
            change.
        reason: one sentence for the report.
    """

    policy: AveragingPolicy
    gain: float
    reason: str


def choose_initial_policy(objective: ObjectiveName) -> AveragingPolicy:
    """Choose the policy until an average has been timed.

    If time is the objective, ranks average in pairs, since an average of all might take long.
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
    """Measurements from before the first average of all models.

    Attributes:
        steps_s: duration of a step of each rank that has reported one.
        round_trips_s: time that the models of a pairwise exchange spent on the links, there and
            back, for each rank that began an exchange and has reported it.
        expected_reports: number of ranks that begin exchanges.
        elapsed_s: duration of the leader's steps so far.
    """

    steps_s: Sequence[float]
    round_trips_s: Sequence[float]
    expected_reports: int
    elapsed_s: float


@dataclass(frozen=True)
class FirstAverageDecision:
    """Decision on whether the first average of all models begins now.

    Attributes:
        begins: whether it begins; otherwise ranks continue to average in pairs.
        policy: policy that it begins with.
        reason: reason for the pairwise mode; empty if the measurements do not decide it.
    """

    begins: bool
    policy: AveragingPolicy
    reason: str = ""


def decide_first_average(
    seen: EarlyMeasurements, criteria: ChoiceCriteria, first: AveragingPolicy
) -> FirstAverageDecision:
    """Decide whether the first average of all models begins, to be timed.

    Such an average takes at least as long as a round trip over the slowest link, and usually
    `ROUND_TRIPS_PER_AVERAGE` times that. If this is many steps, an average made only to find out
    would occupy slow links for long. The average that is made later, after many steps, is only
    timed and moves no model (see `AveragingPolicy.measures_only`).

    Args:
        seen: measurements so far.
        criteria: objective and parameters.
        first: policy to use unless the measurements speak against it.
    """
    step_s = median(seen.steps_s) if seen.steps_s else float("inf")
    ratio, elapsed_steps = max(seen.round_trips_s, default=0.0) / step_s, seen.elapsed_s / step_s
    if ratio < criteria.pairs_from and len(seen.round_trips_s) < seen.expected_reports:
        if elapsed_steps < criteria.max_period:
            return FirstAverageDecision(begins=False, policy=first)
        # A rank that has reported nothing for so long has at least such a slow link or computer.
        ratio = float(criteria.max_period)
    if ratio < criteria.pairs_from:
        return FirstAverageDecision(begins=True, policy=first)
    pairs = _build_pairwise_policy(ROUND_TRIPS_PER_AVERAGE * ratio, criteria)
    reason = (
        f"{_describe_policy(pairs)}: the slowest round trip of a pairwise exchange takes"
        f" {ratio:.2g} times a step, and an average of all models takes no less"
    )
    return FirstAverageDecision(elapsed_steps >= pairs.steps, pairs, reason)


def estimate_cost(
    policy: AveragingPolicy, costs: AveragingCosts, criteria: ChoiceCriteria
) -> float:
    """Estimate the cost of one step's progress on every rank, if all models are averaged.

    Returns:
        Seconds, or money if the cost is the objective and has a price.
    """
    if policy.waits:
        return (1 + criteria.drift * (policy.steps - 1)) * (
            costs.slowest_s + costs.average_s / policy.steps
        )
    # An average begins only after the last one has ended.
    between = max(policy.steps, costs.average_steps)
    # Steps needed for the progress of one step, times the cost of one step.
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
    """Choose the cheapest policy, or keep the current one if it is nearly as cheap.

    For fairness, all ranks wait for each other, so that all learn equally, and the fastest such
    policy is the best. For time, ranks may average in pairs.

    Args:
        costs: measured costs.
        criteria: objective and parameters.
        current: policy in use.
    """
    if _is_pairwise_better(costs, criteria, current):
        pairs = _build_pairwise_policy(costs.average_steps, criteria)
        # A period within a factor of two is kept, so that noise causes no decisions.
        if (
            _is_pairwise_confirmed(current)
            and current.steps / 2 <= pairs.steps <= current.steps * 2
        ):
            return PolicyChoice(current, 1.0, f"no change: {_describe_reason(costs, criteria)}")
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
        return PolicyChoice(current, 1.0, f"no change: {_describe_reason(costs, criteria)}")
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
    """Return whether the pairwise mode results from timed averages.

    Otherwise it is the initial mode (see `choose_initial_policy`).
    """
    return current.measures_only


def _build_pairwise_policy(average_steps: float, criteria: ChoiceCriteria) -> AveragingPolicy:
    return AveragingPolicy(
        max(criteria.max_period, ceil(average_steps / MAX_TIMING_FRACTION)), AveragingMode.PAIRWISE
    )


def _describe_policy(policy: AveragingPolicy) -> str:
    frequency = "in every step" if policy.steps == 1 else f"every {policy.steps} steps"
    match policy.mode:
        case AveragingMode.BLOCKING:
            return (
                f"average all models {frequency}, every worker waiting, so that all learn equally"
            )
        case AveragingMode.PAIRWISE:
            return (
                f"average models in pairs without waiting, and time an average of all {frequency}"
            )
    return f"average all models {frequency}, or when the last average ends, without waiting"


def _describe_reason(costs: AveragingCosts, criteria: ChoiceCriteria) -> str:
    reason = f"an average of all models takes {costs.average_steps:.2g} times a step"
    if costs.slowest_s > (1 + MIN_RELATIVE_GAIN) * costs.step_s:
        reason += (
            f", and a step of the slowest worker takes {costs.slowest_s / costs.step_s:.2g} times"
            " the median step"
        )
    if criteria.objective == "cost" and criteria.price_per_byte > 0:
        rent = max(criteria.rent_per_s * costs.step_s, 1e-30)
        reason += (
            ", and bytes between tiers cost"
            f" {criteria.price_per_byte * costs.average_bytes / rent:.2g} times the hosts' rent for"
            " one step"
        )
    return reason


def count_bytes_between_tiers(tiers: Sequence[str], model_bytes: int) -> float:
    """Return the bytes that an average of all models sends between tiers.

    It is the mean over the possible owners of the parts. A rank in another tier than a part's
    owner sends its part there and receives the mean.

    Args:
        tiers: tier of every rank.
        model_bytes: size of one model.
    """
    ranks = len(tiers)
    alike = sum(size * size for size in Counter(tiers).values()) / ranks
    return 2 * (ranks - alike) * model_bytes
