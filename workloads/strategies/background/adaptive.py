"""Measures the continuum while it trains, and has models averaged in the manner and as often as
suits it and the objective best.

Ours, out of Overlap Local-SGD (all, nobody waiting) and AD-PSGD (two by two). What is measured is
how long ranks' steps and the averages of all take, and before there was one, exchanges of two, for
what that takes of slow links cannot be had back; who leads the averages decides from it, by the
pure functions in `workloads/adaptive/`, and tells all with the next one. It reads nothing but the
ranks' own clocks: neither the scenario nor the analysis.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from statistics import median
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from laggard.workloads.specification.section import StepCount
from laggard.workloads.strategies.background.async_averager import (
    AverageTiming,
    AveragingMode,
    AveragingPolicy,
    PreAverageTiming,
)
from laggard.workloads.strategies.background.averaging_choice import (
    AveragingCosts,
    ChoiceCriteria,
    EarlyMeasurements,
    choose_initial_policy,
    choose_policy,
    count_bytes_between_tiers,
    decide_first_average,
)
from laggard.workloads.strategies.background.overlap_local_sgd import OverlappedAveraging
from laggard.workloads.strategies.background.pair_exchange import PairExchange
from laggard.workloads.strategies.base.graph import is_active
from laggard.workloads.strategies.base.parameters import BackgroundParameters
from laggard.workloads.transport.frames import Message

if TYPE_CHECKING:
    from laggard.workloads.strategies.base.strategy import TrainingContext


READY_FRACTION = 0.5
AVERAGE_WINDOW = 5
"""Averages whose middle one says what an average takes: a rank that is slow for a moment holds one
up, and makes no link slow."""

PARTNER_TIMEOUT_S = 10.0
"""After which a rank no longer waits for one partner, and tries another."""

HOUR_S = 3600.0


class AdaptiveParameters(BackgroundParameters):
    """Measures the continuum while it trains, and averages models in the manner and as often as
    suits it and the objective best.
    """

    reference: ClassVar[str] = "ours; Wang and Joshi, SysML 2019"
    summary: ClassVar[str] = (
        "chooses global averaging (as `overlap_local_sgd`) or pairwise averaging (as "
        "`ad_psgd`), and how often, from its measurements and the `objective`; the report "
        "shows each decision"
    )
    RENAMED: ClassVar[Mapping[str, str]] = {"longest": "max_period"}

    name: Literal["adaptive"]
    drift: float = Field(
        default=0.04,
        ge=0,
        le=1,
        description="part of a step's progress lost per further step without an average",
    )
    effort: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description=(
            "seconds of training that a second of averaging is worth, where nobody waits for it"
        ),
    )
    max_period: StepCount = Field(
        default=32,
        description=(
            "steps between two averages of all workers, at most, unless models go two by two"
        ),
    )
    pairs: float = Field(
        default=3.0,
        gt=0,
        description=(
            "steps that an average of all takes from which on workers average their models two by"
            " two instead"
        ),
    )

    def create_worker(self, context: TrainingContext) -> Adaptive:
        """Create one rank's side (see `Parameters`)."""
        return Adaptive(self, context)


class Adaptive(OverlappedAveraging):
    """As `OverlappedAveraging`, on terms that follow what is measured; where these say so, two by
    two.

    Args:
        parameters: what an average left out costs, what one that is made, and when another manner
            is better.
        context: what this rank trains with.
    """

    def __init__(self, parameters: AdaptiveParameters, context: TrainingContext) -> None:
        self._parameters = parameters
        super().__init__(
            context,
            choose_initial_policy(context.objective.name),
            READY_FRACTION,
            self._choose_policy,
            self._choose_first_policy,
        )
        self._averages_ns: deque[int] = deque(maxlen=AVERAGE_WINDOW)
        self._has_recorded_reason = False

    @property
    def weight(self) -> float:
        """By samples since the last average; like any other's where models are averaged two by two,
        which keeps the plain mean (see `PeerStrategy`).
        """
        return 1.0 if self._member.policy.mode is AveragingMode.PAIRWISE else super().weight

    def _reset_members(self, present: Collection[int]) -> None:
        super()._reset_members(present)
        self._pair_exchange = PairExchange(
            self._context, "complete", PARTNER_TIMEOUT_S, self._current, self._lock
        )
        self._pair_exchange.reset_members(present)

    def _on_member_joined(self, rank: int) -> None:
        super()._on_member_joined(rank)
        self._pair_exchange.add_member(rank)

    def _on_member_lost(self, rank: int) -> None:
        super()._on_member_lost(rank)
        self._pair_exchange.remove_member(rank)

    def _on_step_done(self, samples: int) -> None:
        super()._on_step_done(samples)
        self._pair_exchange.on_step_done()

    def _exchange_models(self) -> None:
        if self._pair_exchange.record_one_way_time():
            with self._lock:
                self._member.record_steps(0, self._step_ns, self._round_trip_ns)
        super()._exchange_models()
        if self._member.policy.mode is AveragingMode.PAIRWISE:
            self._pair_exchange.begin(timed=self._round_trip_ns is None)

    def _on_message(self, message: Message) -> None:
        if not self._pair_exchange.receive(message):
            super()._on_message(message)

    @property
    def _round_trip_ns(self) -> int | None:
        """Who begins exchanges has had one before it says that it is ready, as long as models go
        two by two and nothing else has been timed.

        What counts is the time on the way, taken to be the same back, without that of the two
        computers: a slow one has its share of an average of all by itself, and links have all of
        it.
        """
        present = sorted({self._context.rank, *self._present})
        if self._member.policy != choose_initial_policy(
            self._context.objective.name
        ) or not is_active(present, self._context.rank):
            return 0
        if self._member.policy.mode is not AveragingMode.PAIRWISE or len(present) < 2:
            return 0
        return 2 * self._pair_exchange.one_way_ns or None

    def _choose_first_policy(
        self, untimed: PreAverageTiming, policy: AveragingPolicy
    ) -> AveragingPolicy | None:
        """Choose the policy of the first average as the leader, once pairwise exchanges are
        measured.
        """
        if policy.mode is not AveragingMode.PAIRWISE:
            return policy
        present = sorted({self._context.rank, *self._present})
        early = EarlyMeasurements(
            steps_s=[each * 1e-9 for each in untimed.step_ns.values() if each],
            round_trips_s=[each * 1e-9 for each in untimed.round_trip_ns.values()],
            expected_reports=sum(is_active(present, rank) for rank in present),
            elapsed_s=untimed.taken * untimed.step_ns.get(self._context.rank, 0) * 1e-9,
        )
        opening = decide_first_average(early, self._build_criteria(), policy)
        if opening.reason and not self._has_recorded_reason:
            self._has_recorded_reason = True
            self._context.record_decision(self._step, opening.reason)
        return opening.policy if opening.begins else None

    def _choose_policy(self, measured: AverageTiming, policy: AveragingPolicy) -> AveragingPolicy:
        """Choose the policy from now on, as the leader."""
        self._averages_ns.append(measured.average_ns)
        steps_ns = [step_ns for step_ns in measured.step_ns.values() if step_ns]
        if not steps_ns:
            return policy
        choice = choose_policy(self._build_costs(steps_ns), self._build_criteria(), policy)
        if choice.policy != policy:
            self._context.record_decision(self._step, choice.reason)
        return choice.policy

    def _build_costs(self, steps_ns: list[int]) -> AveragingCosts:
        virtual = 1e-9 / self._context.dilation
        return AveragingCosts(
            steps_s=[step_ns * virtual for step_ns in steps_ns],
            average_s=median(self._averages_ns) * virtual,
            average_bytes=count_bytes_between_tiers(self._context.tiers, self._state.bytes),
        )

    def _build_criteria(self) -> ChoiceCriteria:
        objective, parameters = self._context.objective, self._parameters
        rent = sum(objective.prices.get(tier, 0.0) for tier in self._context.tiers)
        return ChoiceCriteria(
            objective.name,
            parameters.drift,
            parameters.effort,
            parameters.max_period,
            rent_per_s=rent / HOUR_S,
            price_per_byte=objective.prices.get("gigabyte", 0.0) / 1e9,
            pairs_from=parameters.pairs,
        )
