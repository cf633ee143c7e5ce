"""Hop: decentralised training that bears slow workers, by models that may be old, neighbours that
are not waited for, and steps left out.

Q. Luo, J. Lin, Y. Zhuo, X. Qian, "Hop: Heterogeneity-aware Decentralized Training", ASPLOS 2019;
the rules are in hop_rule.py.
"""

from __future__ import annotations

import torch

from laggard.core.span_schema import Phase
from laggard.workloads.datasets.dataset import Batch
from laggard.workloads.datasets.partition import Share
from laggard.workloads.strategies.base.parameters import HopParameters
from laggard.workloads.strategies.base.peer_connections import build_stamped_message
from laggard.workloads.strategies.base.peer_strategy_base import RuleDrivenPeerStrategy
from laggard.workloads.strategies.base.strategy import TrainingContext
from laggard.workloads.strategies.peer.hop_rule import HopRule, HopStepEnd
from laggard.workloads.strategies.peer.message_wait import MessageWait
from laggard.workloads.tracing.step_result import StepResult
from laggard.workloads.transport.frames import Message

BEGUN_MESSAGE = 2
"""Version: the step that the sender has begun, with this model if there is one."""


class HopStrategy(RuleDrivenPeerStrategy):
    """x_i <- weighted mean of the own model and those that are there, then - lr * g_i(x_i before).

    With no staleness and no backups it is `Gossip`, bit for bit. Who is behind all its neighbours
    leaves steps out; its gradient counts all the same. In `steps.parquet`, staleness is by how many
    steps the oldest model that went into the average was behind, or the own gradient after a jump.

    Args:
        parameters: graph and bounds.
        context: what this rank trains with.
    """

    def __init__(self, parameters: HopParameters, context: TrainingContext) -> None:
        self._rule: HopRule[torch.Tensor] = HopRule(context.rank, context.world_size, parameters)
        super().__init__(context, self._rule)
        self._message_wait = MessageWait(self._peers, context.recorder)
        self._peers.join_handler = self
        self._skipped_steps = 0

    def add_member(self, rank: int, step: int) -> None:  # noqa: ARG002 - it will tell its neighbours itself
        """Take it into the graph (see `JoinHandler`)."""
        self._rule.add_member(rank)

    def step(self, step: int, batch: Batch, share: Share) -> StepResult:
        """Send, forward, backward, wait as long as must be, average, update (see
        `AsyncStrategy`).
        """
        assert step == self._rule.step
        recorder, skipped = self._context.recorder, self._skipped_steps
        self._mine = self._state.read().cpu()
        self._send_notices()
        loss = self._gradient.compute(batch, share)
        can_end, waited_for = self._message_wait.wait(self._can_end, self._on_message)
        recorder.enter(Phase.OPTIMIZER)
        staleness = 0
        if can_end:
            ending = self._rule.end()
            staleness, self._skipped_steps = ending.staleness, ending.skipped
            self._mix(ending)
        self.optimizer.step()
        self._gradient.synchronize()
        recorder.enter(Phase.OTHER)
        return StepResult(loss, staleness=staleness, skipped=skipped, waited_for=waited_for)

    def _send_notices(self) -> None:
        self._remove_lost_members()
        for notice in self._rule.build_notices():
            model = self._mine if notice.with_model else None
            self._peers.send(
                notice.rank, build_stamped_message(BEGUN_MESSAGE, self._rule.step, model)
            )

    def _on_message(self, message: Message) -> None:
        self._rule.receive(message.sender, message.version, message.tensor)

    def _can_end(self) -> bool:
        self._send_notices()
        return self._rule.can_end()

    def _remove_lost_members(self) -> None:
        for rank in (
            set(range(self._context.world_size)) - self._peers.present - {self._context.rank}
        ):
            self._rule.remove_member(rank)

    def _mix(self, ending: HopStepEnd[torch.Tensor]) -> None:
        mixed = self._mine * ending.weights[self._context.rank]
        for rank, model in sorted(ending.models.items()):
            mixed += model * ending.weights[rank]
        self._state.write_average(mixed, self._mine)
