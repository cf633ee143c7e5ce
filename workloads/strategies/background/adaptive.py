"""Strategy that measures the continuum during training and adapts the averaging policy to it.

It is ours, built from Overlap Local-SGD (averages of all models, without waiting) and AD-PSGD
(averages in pairs). It measures the duration of the ranks' steps and of the averages of all
models. Before the first such average it measures pairwise exchanges, because an average of all
would occupy slow links for a long time.

The leader of the averages decides by the pure functions of `averaging_choice.py` and informs the
other ranks with the next average. The strategy reads only the ranks' own clocks, neither the
scenario nor the analysis.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from statistics import median
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from laggard.core.rules.graph import is_active
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
from laggard.workloads.strategies.base.parameters import BackgroundParameters
from laggard.workloads.transport.frames import Message

if TYPE_CHECKING:
    from laggard.workloads.strategies.base.strategy import TrainingContext


READY_FRACTION = 0.5
AVERAGE_WINDOW = 5
"""Number of averages whose median duration counts. A rank that is slow for a moment delays one
average, which does not make any link slow.
"""

PARTNER_TIMEOUT_S = 10.0
"""Longest wait for one partner before another one is tried, in virtual seconds."""

HOUR_S = 3600.0


class AdaptiveParameters(BackgroundParameters):
    """Parameters of `adaptive`, which measures the continuum and adapts how models are averaged.

    It chooses the averaging mode and the period that suit the continuum and the objective best.
    """

    reference: ClassVar[str] = "ours; Wang and Joshi, SysML 2019"
    summary: ClassVar[str] = (
        "chooses global averaging (as `overlap_local_sgd`) or pairwise averaging (as `ad_psgd`), "
        "and how often, from its own measurements and the `objective`; the report shows each "
        "decision"
    )
    RENAMED: ClassVar[Mapping[str, str]] = {"longest": "max_period"}

    name: Literal["adaptive"]
    drift: float = Field(
        default=0.04,
        ge=0,
        le=1,
        description="fraction of a step's progress lost per further step without an average",
    )
    effort: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description=(
            "seconds of training that one second of averaging costs when no worker waits for it"
        ),
    )
    max_period: StepCount = Field(
        default=32,
        description=(
            "largest number of steps between two averages of all models outside the pairwise mode"
        ),
    )
    pairs: float = Field(
        default=3.0,
        gt=0,
        description=(
            "duration of an average of all models, in steps, from which on workers average in pairs"
            " instead"
        ),
    )

    def create_worker(self, context: TrainingContext) -> Adaptive:
        """Create one rank's side (see `Parameters`)."""
        return Adaptive(self, context)


class Adaptive(OverlappedAveraging):
    """Worker of `adaptive`: `OverlappedAveraging` whose policy follows the measurements.

    In the pairwise mode it also exchanges models in pairs.

    Args:
        parameters: costs of omitted and of performed averages, and the threshold of the pairwise
            mode.
        context: training context of the rank.
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
        """Weight of this rank's model: its samples since the last average (see `PeerStrategy`).

        In the pairwise mode all weights are 1, because pairwise averages preserve the unweighted
        mean.
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
        """Round trip of a pairwise exchange, None while it must still be measured, 0 if not needed.

        Before the first average of all, an active rank must measure one exchange before it reports
        that it is ready. Only the time on the link counts, doubled for the way back. The time of
        the two computers is excluded: a slow computer owns a small part of an average of all, but
        a slow link carries all of it.
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
        """Choose, as the leader, the policy of the first average, once exchanges are measured."""
        if policy.mode is not AveragingMode.PAIRWISE:
            return policy
        present = sorted({self._context.rank, *self._present})
        # Only active ranks begin exchanges, and therefore report round trips.
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
        # Measurements are in real ns; the criteria are in virtual seconds.
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
