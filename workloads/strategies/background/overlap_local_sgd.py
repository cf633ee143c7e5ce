"""Local SGD whose averages overlap with training, so no rank waits for slow ranks or links.

J. Wang, H. Liang, G. Joshi, "Overlap Local-SGD: An Algorithmic Approach to Hide Communication
Delays in Distributed SGD", ICASSP 2020. Here ranks may take different numbers of steps between two
averages, and are weighted by the samples that they have trained on (B. McMahan et al., AISTATS
2017).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from laggard.core.span_schema import Phase
from laggard.workloads.specification.section import StepCount
from laggard.workloads.strategies.background.async_averager import (
    AsyncAverager,
    AverageResult,
    AveragingPolicy,
    Contribution,
    FirstPolicyChooser,
    PolicyChooser,
    begin_immediately,
    keep_policy,
)
from laggard.workloads.strategies.background.background_exchange import BackgroundExchange
from laggard.workloads.strategies.base.parameters import BackgroundParameters
from laggard.workloads.strategies.base.peer_connections import POLL_S
from laggard.workloads.strategies.base.session_numbers import pack_session_number
from laggard.workloads.tracing.step_result import StepResult
from laggard.workloads.transport.frames import Message

if TYPE_CHECKING:
    from laggard.workloads.datasets.dataset import Batch
    from laggard.workloads.datasets.partition import Share
    from laggard.workloads.strategies.base.strategy import TrainingContext


STEP_TIME_SMOOTHING = 0.25
"""Weight of the last step in the exponential average of step durations."""


class OverlapLocalSGDParameters(BackgroundParameters):
    """Parameters of `overlap_local_sgd`: all models are averaged while workers train on.

    Overlap Local-SGD: Wang et al., ICASSP 2020.
    """

    reference: ClassVar[str] = "Overlap Local-SGD: Wang et al., ICASSP 2020"
    summary: ClassVar[str] = (
        "no server and no waiting: once a fraction `ready` of the workers has taken `steps` "
        "steps since the last average, all models are averaged, weighted by samples, while "
        "training continues"
    )
    name: Literal["overlap_local_sgd"]
    steps: StepCount = Field(
        default=1,
        description="steps since the last average after which a worker is ready for the next",
    )
    ready_part: float = Field(
        default=0.5,
        ge=0,
        le=1,
        alias="ready",
        description="fraction of the workers that must be ready for it",
    )

    def create_worker(self, context: TrainingContext) -> OverlapLocalSGD:
        """Create one rank's side (see `Parameters`)."""
        return OverlapLocalSGD(self, context)


class OverlappedAveraging(BackgroundExchange):
    """Base of workers that average all models in the background.

    x_i <- x_i - lr * g_i(the x_i that was read), and in the background x_i <- x_i + (mean of all
    contributed x_j) - (contributed x_i).

    Args:
        context: training context of the rank.
        policy: initial averaging policy.
        ready_part: fraction of the ranks that must be ready for an average.
        policy_chooser: function that chooses later policies if this rank is the leader (see
            async_averager.py).
        first_policy_chooser: function that chooses the policy of the first average (see
            async_averager.py).
    """

    def __init__(
        self,
        context: TrainingContext,
        policy: AveragingPolicy,
        ready_part: float,
        policy_chooser: PolicyChooser = keep_policy,
        first_policy_chooser: FirstPolicyChooser = begin_immediately,
    ) -> None:
        super().__init__(context)
        self._policy, self._ready_part, self._policy_chooser, self._first_policy_chooser = (
            policy,
            ready_part,
            policy_chooser,
            first_policy_chooser,
        )
        self._reset_members({context.rank, *self._present})
        self._samples = self._unreported_steps = 0
        self._ended_ns, self._step_ns = 0, 0
        self._state_changed = threading.Event()

    @property
    def weight(self) -> float:
        """Weight of this rank's model: samples since the last average (see `PeerStrategy`)."""
        return float(max(self._samples, 1))

    @property
    def _round_trip_ns(self) -> int | None:
        """Round trip of a pairwise exchange, for `AsyncAverager.record_steps`; 0: not needed."""
        return 0

    def _contribute(self) -> Contribution:
        samples, self._samples = self._samples, 0
        return Contribution(self._current.contribute(), samples)

    def _on_average_done(self, outcome: AverageResult) -> None:
        self._samples += outcome.samples
        if outcome.delta is None:
            self._current.withdraw_contribution()
        else:
            self._current.apply_mean(outcome.delta)

    def step(self, step: int, batch: Batch, share: Share) -> StepResult:
        """Train on one batch; in the blocking mode, wait for the average (see `AsyncStrategy`)."""
        result = super().step(step, batch, share)
        if self._must_wait():
            self._context.recorder.enter(Phase.COMM)
            # The background thread sets the event whenever it has handled messages.
            while self._must_wait() and not self._peers.has_ended:
                self._state_changed.wait(POLL_S)
                self._state_changed.clear()
            self._context.recorder.enter(Phase.OTHER)
            self._ended_ns = time.monotonic_ns()  # waiting is not part of a step
        return result

    def _must_wait(self) -> bool:
        with self._lock:
            return self._member.waits or (self._member.policy.waits and self._unreported_steps > 0)

    def _reset_members(self, present: Collection[int]) -> None:
        self._member = AsyncAverager(
            self._context.rank,
            present,
            self._policy,
            self._ready_part,
            self._contribute,
            self._on_average_done,
            self._policy_chooser,
            self._first_policy_chooser,
            last_number=pack_session_number(self._peers.session_of(self._context.rank)),
        )

    def _on_member_joined(self, rank: int) -> None:
        self._member.add_member(rank)

    def _on_step_done(self, samples: int) -> None:
        now_ns = time.monotonic_ns()
        if self._ended_ns:
            step_ns = now_ns - self._ended_ns
            self._step_ns += (
                round((step_ns - self._step_ns) * STEP_TIME_SMOOTHING) if self._step_ns else step_ns
            )
        self._ended_ns = now_ns
        self._samples += samples
        self._unreported_steps += 1

    def _on_member_lost(self, rank: int) -> None:
        self._member.remove_member(rank)

    def _on_message(self, message: Message) -> None:
        with self._lock:
            self._member.receive(message)
        self._send_outbox()

    def _exchange_models(self) -> None:
        with self._lock:
            unreported_steps, self._unreported_steps = self._unreported_steps, 0
            if unreported_steps:
                self._member.record_steps(unreported_steps, self._step_ns, self._round_trip_ns)
        self._send_outbox()

    def _send_outbox(self) -> None:
        self._state_changed.set()
        while self._member.outbox:
            self._peers.send(*self._member.outbox.popleft())


class OverlapLocalSGD(OverlappedAveraging):
    """Worker of `overlap_local_sgd`: averaging with a constant policy.

    Args:
        parameters: conditions for an average.
        context: training context of the rank.
    """

    def __init__(self, parameters: OverlapLocalSGDParameters, context: TrainingContext) -> None:
        super().__init__(context, AveragingPolicy(parameters.steps), parameters.ready_part)
