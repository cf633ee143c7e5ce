"""Decentralized training over unequal links: pairs of ranks average their models.

In each step every rank averages with one other rank, often over fast links and rarely over slow
ones. P. Zhou et al., "Communication-efficient Decentralized Machine Learning over Heterogeneous
Networks" (NetMax), ICDE 2021, with the pairs of SAPS-PSGD (Z. Tang et al., ICDCS 2020).
`matching_policy.py` decides how often each pair meets; `fast_links_rule.py` is the protocol by
which ranks agree.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from laggard.core.rules.fast_links import (
    FastLinksMessage,
    FastLinksRule,
    FastLinksSend,
)
from laggard.core.span_schema import Phase
from laggard.workloads.specification.section import StepCount
from laggard.workloads.strategies.base.parameters import PeerParameters
from laggard.workloads.strategies.base.peer_connections import build_stamped_message
from laggard.workloads.strategies.base.peer_strategy_base import RuleDrivenPeerStrategy
from laggard.workloads.strategies.peer.message_wait import MessageWait
from laggard.workloads.tracing.step_result import StepResult
from laggard.workloads.transport.frames import Message

if TYPE_CHECKING:
    import torch

    from laggard.workloads.datasets.dataset import Batch
    from laggard.workloads.datasets.partition import Share
    from laggard.workloads.strategies.base.strategy import TrainingContext


class FastLinksParameters(PeerParameters):
    """Parameters of `fast_links`: in each step, pairs of workers average their models.

    Pairs with fast links meet often, pairs with slow links rarely (NetMax: Zhou et al., ICDE
    2021).
    """

    reference: ClassVar[str] = "NetMax: Zhou et al., ICDE 2021"
    summary: ClassVar[str] = (
        "in each step workers average their models in pairs, mostly over links measured to be "
        "fast, while models still mix at least `mixing` times as fast as with uniform pairs; "
        "all workers take the same steps"
    )
    name: Literal["fast_links"]
    every: StepCount = Field(
        default=20, description="steps between two updates of the policy that pairs workers"
    )
    mixing: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="least speed at which models mix, relative to uniform pairs",
    )
    explore: float = Field(
        default=0.1, gt=0, le=1, description="fraction of the steps with uniform pairs"
    )

    def create_worker(self, context: TrainingContext) -> FastLinks:
        """Create one rank's side (see `Parameters`)."""
        return FastLinks(self, context)


class FastLinks(RuleDrivenPeerStrategy):
    """Worker of `fast_links`: x_i <- (x_i + x_j) / 2 - lr * g_i(x_i before).

    The rank j is the partner of this step. Models travel while the gradient is computed, and a
    rank waits only for its partner of the step. All ranks take the same steps, so in the long run
    no rank is faster than the slowest computer: the strategy avoids slow links only.

    Args:
        parameters: parameters of the policy.
        context: training context of the rank.
    """

    def __init__(self, parameters: FastLinksParameters, context: TrainingContext) -> None:
        import torch

        from laggard.workloads.strategies.peer.link_times import LinkTimes

        self._rule: FastLinksRule[torch.Tensor] = FastLinksRule(
            context.rank, context.world_size, parameters, context.seed
        )
        super().__init__(context, self._rule)
        self._message_wait, self._link_times = (
            MessageWait(self._peers, context.recorder),
            LinkTimes(context.world_size),
        )
        self._row = torch.empty(0)
        self._peers.join_handler = self

    def add_member(self, rank: int, step: int) -> None:
        """Send a joining rank the measurements that it needs (see `JoinHandler`)."""
        import torch

        for reported_step, row in self._rule.add_member(rank, step):
            self._peers.send(
                rank,
                build_stamped_message(
                    FastLinksMessage.MEASURED.value, reported_step, torch.from_numpy(row)
                ),
            )

    def step(self, step: int, batch: Batch, share: Share) -> StepResult:
        """Send, compute, wait for the partner, average and update (see `AsyncStrategy`)."""
        import torch

        assert step == self._rule.step
        recorder, row = self._context.recorder, self._link_times.row
        self._mine, self._row = self._state.read().cpu(), torch.from_numpy(row)
        # Lost ranks must be known to the rule before it draws the partner.
        self._remove_lost_members()
        self._send(self._rule.begin(row))
        began_ns = time.monotonic_ns()
        loss = self._gradient.compute(batch, share)
        self._link_times.record_gradient((time.monotonic_ns() - began_ns) / 1e9)
        can_end, waited_for = self._message_wait.wait(self._can_end, self._on_message)
        recorder.enter(Phase.OPTIMIZER)
        theirs = self._rule.end() if can_end else None
        if theirs is not None:
            self._state.write_average((self._mine + theirs) / 2, self._mine)
        self.optimizer.step()
        self._gradient.synchronize()
        recorder.enter(Phase.OTHER)
        return StepResult(loss, waited_for=waited_for)

    def _send(self, sends: tuple[FastLinksSend, ...]) -> None:
        tensors = {
            FastLinksMessage.OFFER: self._mine,
            FastLinksMessage.REFUSAL: None,
            FastLinksMessage.MEASURED: self._row,
        }
        for send in sends:
            self._peers.send(
                send.rank,
                build_stamped_message(
                    send.message_kind.value, send.step, tensors[send.message_kind]
                ),
            )

    def _on_message(self, message: Message) -> None:
        message_kind, rank, step = FastLinksMessage(message.kind), message.sender, message.version
        if message_kind is FastLinksMessage.REFUSAL:
            self._rule.on_refusal(rank, step)
            return
        assert message.tensor is not None
        if message_kind is FastLinksMessage.MEASURED:
            self._rule.on_measurement(rank, step, message.tensor.numpy())
            return
        took_s = (time.monotonic_ns() - message.values[0]) / 1e9
        self._link_times.record_transfer(rank, took_s, was_queued=self._message_wait.was_queued)
        self._send(self._rule.on_offer(rank, step, message.tensor))

    def _can_end(self) -> bool:
        self._remove_lost_members()
        return self._rule.can_end()

    def _remove_lost_members(self) -> None:
        for rank in (
            set(range(self._context.world_size)) - self._peers.present - {self._context.rank}
        ):
            self._rule.remove_member(rank)
