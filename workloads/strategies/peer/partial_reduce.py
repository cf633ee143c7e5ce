"""Partial all-reduce: ranks that have finished a step average their models in small groups.

No rank waits for others than its group. Q. Luo et al., "Prague: High-Performance
Heterogeneity-Aware Asynchronous Decentralized Training", ASPLOS 2020, introduced groups made by a
generator. X. Miao et al., "Heterogeneity-Aware Distributed Machine Learning Training via Partial
Reduce", SIGMOD 2021, group the ranks that are ready, and join groups that would otherwise stay
apart.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from laggard.core.span_schema import NOBODY, Phase
from laggard.workloads.strategies.base.parameters import PeerParameters
from laggard.workloads.strategies.base.peer_connections import BACKGROUND_POLL_S, POLL_S, JoinState
from laggard.workloads.strategies.base.peer_strategy_base import PeerStrategyBase
from laggard.workloads.strategies.peer.group_member import GroupAverageResult, GroupMember
from laggard.workloads.tracing.step_result import StepResult
from laggard.workloads.transport.frames import Message

if TYPE_CHECKING:
    import torch

    from laggard.workloads.datasets.dataset import Batch
    from laggard.workloads.datasets.partition import Share
    from laggard.workloads.strategies.base.strategy import TrainingContext


class PartialReduceParameters(PeerParameters):
    """Parameters of `partial_reduce`: workers that have finished a step average in small groups.

    Prague: Luo et al., ASPLOS 2020.
    """

    reference: ClassVar[str] = "Prague: Luo et al., ASPLOS 2020; Miao et al., SIGMOD 2021"
    summary: ClassVar[str] = (
        "no server: a worker that has finished a step averages its model with `group` - 1 others "
        "that have finished one, too; workers whose models have not mixed in `rounds` steps are "
        "then grouped together"
    )
    name: Literal["partial_reduce"]
    group: int = Field(
        default=2, ge=2, le=15, description="workers that average their models together"
    )  # a message holds 16 numbers: the members and one more
    rounds: int = Field(
        default=16,
        ge=1,
        le=100_000_000,
        description=(
            "steps after which workers whose models have not mixed are grouped, even if slow"
        ),
    )

    def create_worker(self, context: TrainingContext) -> PartialReduceStrategy:
        """Create one rank's side (see `Parameters`)."""
        return PartialReduceStrategy(self, context)


class PartialReduceStrategy(PeerStrategyBase):
    """Worker of `partial_reduce`: x_i <- x_i - lr * g_i(x_i), then the mean of its group.

    `group_member.py` has the protocol. A background thread communicates with the other ranks, so
    that the group generator answers at once while its rank computes.

    Args:
        parameters: size of the groups, and the bound on mixing.
        context: training context of the rank.
    """

    def __init__(self, parameters: PartialReduceParameters, context: TrainingContext) -> None:
        super().__init__(context)
        self._parameters = parameters
        self._member, self._present = self._create_member()
        self._join_state: JoinState = (0, self._state.read().cpu())
        self._requested_model: torch.Tensor | None = None
        self._outcome: GroupAverageResult | None = None
        self._result_ready = threading.Event()
        self._has_thread = False
        self._peers.join_handler = self

    def join(self) -> None:
        """Copy the model of a present rank and begin with its step (see `AsyncStrategy`)."""
        self._join_state = self._peers.join() or self._join_state
        self._step, model = self._join_state
        self._member, self._present = self._create_member()
        self._state.write(model.to(self._context.device))

    def join_state(self) -> JoinState:
        """Return the next step and the model after the last one (see `JoinHandler`)."""
        return self._join_state

    def add_member(self, rank: int, step: int) -> None:  # noqa: ARG002 - ranks need no common steps
        """Allow a rank in groups from now on (see `JoinHandler`)."""
        self._present.add(rank)
        self._member.add_member(rank, self._peers.session_of(rank), time.monotonic_ns())

    def _create_member(self) -> tuple[GroupMember, set[int]]:
        present, parameters = set(self._peers.present), self._parameters
        sessions = {
            rank: self._peers.session_of(rank) for rank in sorted(present | {self._context.rank})
        }
        return GroupMember(
            self._context.rank, sessions, parameters.group, parameters.rounds
        ), present

    def step(self, step: int, batch: Batch, share: Share) -> StepResult:
        """Train on one batch and average with a group (see `AsyncStrategy`)."""
        recorder = self._context.recorder
        if not self._has_thread:
            self._has_thread = True
            self._peers.start_background_thread(self._run_turn, records_sends=False)
        loss = self._gradient.learn(batch, share)
        recorder.enter(Phase.OTHER)
        mine = self._state.read().cpu()
        since_ns = recorder.enter(Phase.COMM)
        outcome = self._average(mine)
        waited_for = self._record_wait(outcome, since_ns)
        recorder.enter(Phase.OTHER)
        if outcome is not None:
            self._state.write(outcome.model.to(self._context.device))
        self._step = step + 1
        self._join_state = (self._step, mine if outcome is None else outcome.model)
        return StepResult(loss, waited_for=waited_for)

    def _average(self, mine: torch.Tensor) -> GroupAverageResult | None:
        """Return the result of a group average; None if training ends first."""
        # Cleared before the request, so that no earlier result is taken.
        self._result_ready.clear()
        self._requested_model = mine
        self._peers.wake()
        while not self._result_ready.wait(POLL_S):
            if self._peers.has_ended:
                return None
        return self._outcome

    def _record_wait(self, outcome: GroupAverageResult | None, since_ns: int) -> int:
        """Record the wait for a group and the averaging, and return the rank that was waited for.

        Until this rank learned of its group, it waited for the rank that completed the group. The
        rest was the averaging.
        """
        if outcome is None:
            return NOBODY
        recorder, grouped_ns = self._context.recorder, max(outcome.grouped_ns, since_ns)
        recorder.enter(Phase.COMM, peer=outcome.waited_for, at_ns=since_ns)
        recorder.enter(Phase.COMM, payload_bytes=outcome.payload_bytes, at_ns=grouped_ns)
        return outcome.waited_for

    def _run_turn(self) -> None:
        """Run one turn of the background thread.

        It handles messages, removes lost ranks, and requests a group if the training thread wants
        one.
        """
        self._peers.listen(self._on_message, BACKGROUND_POLL_S)
        for rank in self._present - self._peers.present:
            self._present.remove(rank)
            self._member.remove_member(rank, time.monotonic_ns())
        # A joining rank requests no group before all others know it (see group_member.py).
        if self._requested_model is not None and self._peers.is_accepted_by_all:
            requested_model, self._requested_model = self._requested_model, None
            self._member.request_group(requested_model, time.monotonic_ns())
        self._send_outbox()

    def _on_message(self, message: Message) -> None:
        self._member.receive(message, time.monotonic_ns())
        self._send_outbox()

    def _send_outbox(self) -> None:
        while self._member.outbox:
            self._peers.send(*self._member.outbox.popleft())
        outcome = self._member.take_outcome()
        if outcome is not None:
            self._outcome = outcome
            self._result_ready.set()
